// Goal: the reader takes exactly what the format's reference implementation takes, and refuses the rest in one sentence.
// Method: the reference's own test vectors, its golden file byte for byte, and every truncation of a valid file.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "ckpt/safetensors.h"
#include "runtime/base/error.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::test;
using ckpt::SafetensorsEntry;

namespace {

std::string with_length(const std::string& header, const std::string& data = "") {
  std::string text;
  for (uint64_t i = 0, length = header.size(); i < 8; ++i, length >>= 8) text += char(length & 0xff);
  return text + header + data;
}

void put(FileSystem& fs, const std::string& path, const std::string& text) { fs.write_new_text(path, text); }

/// The sentence with which a file of these bytes is refused, "" if it is taken.
std::string refusal(const std::string& bytes) {
  PowerLossFileSystem fs;
  put(fs, "/f.safetensors", bytes);
  try {
    ckpt::open_safetensors(fs, "/f.safetensors");
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kCheckpoint);
    CHECK(std::string(error.what()).find("/f.safetensors is not a valid safetensors file: ") == 0);
    return error.what();
  }
}

std::string golden() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}})";
  std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  return with_length(padded, std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0\x80\x3f\x00\xc0", 12));
}

}  // namespace

TEST_CASE("the golden file is written byte for byte and read back") {
  const std::string header =
      ckpt::safetensors_header({{.name = "b", .dtype = "F32", .shape = {2}, .bytes = 8},
                                {.name = "a", .dtype = "BF16", .shape = {1, 2}, .bytes = 4}},
                               {{"format", "pt"}});
  CHECK(golden().size() == 164);
  CHECK(golden().substr(0, 8) == std::string("\x90\0\0\0\0\0\0\0", 8));
  CHECK(header == golden().substr(0, 152));
  PowerLossFileSystem fs;
  put(fs, "/g.safetensors", golden());
  const auto file = ckpt::open_safetensors(fs, "/g.safetensors");
  CHECK(file.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.entries.size() == 2);
  CHECK((file.entries[0].name == "b" && file.entries[0].offset == 152 && file.entries[0].bytes == 8));
  CHECK((file.entries[1].name == "a" && file.entries[1].offset == 160 &&
         file.entries[1].shape == std::vector<int64_t>{1, 2}));
  const auto folder = ckpt::TensorFolder::open(fs, "/g.safetensors");
  CHECK(folder->read_f32("b") == std::vector<float>{1, -2});
  CHECK(folder->read_f32("a") == std::vector<float>{1, -2});
}

TEST_CASE("what the reference takes is taken") {
  CHECK(refusal(golden()) == "");
  CHECK(refusal(with_length("{}\r \t\n")) == "");
  CHECK(refusal(with_length("\t\n{}")) == "");
  CHECK(refusal(with_length(R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})",
                            std::string(16, '\0'))) == "");
  CHECK(refusal(with_length(R"({"test":{"dtype":"I32","shape":[],"data_offsets":[0,4]}})",
                            std::string(4, '\0'))) == "");
  CHECK(refusal(with_length(R"({"test":{"dtype":"I32","shape":[2,0],"data_offsets":[0,0]}})")) == "");
  CHECK(refusal(with_length(R"({"test":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "x")) == "");
}

TEST_CASE("what the reference refuses is refused, with the reason") {
  const auto says = [](const std::string& bytes, const std::string& part) {
    const std::string message = refusal(bytes);
    INFO(message << "  ~  " << part);
    CHECK(message.find(part) != std::string::npos);
  };
  const std::string i32 = R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})";
  says(with_length(i32, std::string(14, '\0')), "ends 2 bytes before its last tensor");
  says(with_length(i32, std::string(18, '\0')), "2 bytes follow its last tensor");
  says("", "it has 0 bytes");
  says(std::string("\x01\0\0", 3), "it has 3 bytes");
  says(std::string("\x00\xe1\xf5\x05\0\0\0\0", 8), "reaches beyond the file's 8 bytes");              // 100 000 000
  says(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), "header length 100000001 exceeds the format's limit");
  says(std::string(8, '\xff'), "exceeds the format's limit");
  says(with_length("{\xff\xff\xff\xff}"), "not JSON in UTF-8");
  says(with_length("{\"\xff\":1}"), "not JSON in UTF-8");
  says(with_length("{xx}"), "not JSON");
  says(with_length("[]"), "no JSON object");
  says(with_length(std::string("{}\0", 3)), "NUL byte");   // found by comparing 40 000 mutated files with the reference
  says(with_length("{} {}"), "not JSON");
  says(
      with_length(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          "x"),
      "the key \"a\" occurs twice");
  says(with_length(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"),
       "the key \"dtype\" occurs twice");
  says(with_length(R"({"a":{"dtype":"I32","shape":[2,18446744073709551614],"data_offsets":[0,16]}})",
                   std::string(16, '\0')),
       "dimension");
  says(with_length(R"({"a":{"dtype":"I32","shape":[9223372036854775807,3],"data_offsets":[0,16]}})",
                   std::string(16, '\0')),
       "overflows");
  says(with_length(R"({"a":{"dtype":"I32","shape":[4611686018427387904],"data_offsets":[0,16]}})",
                   std::string(16, '\0')),
       "overflows");
  says(with_length(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "x"), "no whole number of bytes");
  says(with_length(R"({"a":{"dtype":"F5","shape":[1],"data_offsets":[0,1]}})", "x"), "unknown dtype \"F5\"");
  says(with_length(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "x"), "dimension -1");
  says(with_length(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", "x"), "dimension 1.5");
  says(with_length(R"({"a":{"dtype":"U8","shape":[1],"offsets":[0,1]}})", "x"), "has no data_offsets");
  says(with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "x"), "before its begin");
  says(with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx"), "begins at data byte 1");
  says(with_length(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", "x"), "need 2");
  says(
      with_length(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          "xxx"),
      "begins at data byte 1");
  says(
      with_length(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
          "xxx"),
      "begins at data byte 2");
  says(with_length(R"({"__metadata__":{"format":1}})"), "__metadata__ \"format\" is no string");
}

TEST_CASE("no truncation of a valid file is taken") {
  const std::string whole = golden();
  for (size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    CHECK(refusal(whole.substr(0, size)) != "");
  }
}

TEST_CASE("names are escaped, headers are padded to 8 bytes") {
  for (const std::string name : {"a", "ab", "quote\"d", "back\\slash", "tab\t", "\xc3\xa4"}) {
    const std::string header =
        ckpt::safetensors_header({{.name = name, .dtype = "U8", .shape = {1}, .bytes = 1}}, {});
    CHECK(header.size() % 8 == 0);
    PowerLossFileSystem fs;
    put(fs, "/f", header + "x");
    CHECK(ckpt::open_safetensors(fs, "/f").entries.at(0).name == name);
  }
}

TEST_CASE("any box of a tensor is the box of the whole tensor") {
  std::string data;
  for (int i = 0; i < 35; ++i) {
    const bf16 value(static_cast<float>(i));
    data.append(reinterpret_cast<const char*>(&value), 2);
  }
  PowerLossFileSystem fs;
  put(fs, "/f.safetensors", with_length(R"({"a":{"dtype":"BF16","shape":[5,7],"data_offsets":[0,70]}})", data));
  const auto folder = ckpt::TensorFolder::open(fs, "/f.safetensors");
  for (int64_t row = 0; row <= 5; ++row)
    for (int64_t row_end = row; row_end <= 5; ++row_end)
      for (int64_t col = 0; col <= 7; ++col)
        for (int64_t col_end = col; col_end <= 7; ++col_end) {
          const parallel::Box box{row, row_end, col, col_end};
          std::vector<float> values(size_t(box.count()), -1), expected;
          for (int64_t r = row; r < row_end; ++r)
            for (int64_t c = col; c < col_end; ++c) expected.push_back(float(r * 7 + c));
          folder->read_f32("a", box, values.data());
          REQUIRE(values == expected);
        }
}

TEST_CASE("folders of Hugging Face files") {
  PowerLossFileSystem fs;
  const std::string a = with_length(R"({"a":{"dtype":"F16","shape":[7],"data_offsets":[0,14]}})",
                                    std::string("\x00\x3c\x00\xc0\x01\x00\xff\x7b\x00\x7c\x00\x80\x01\x7e", 14));
  const std::string b = with_length(R"({"b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})",
                                    std::string("\0\0\0\0\0\0\xf8\x3f", 8));
  fs.make_directory("/m");
  put(fs, "/m/model-1.safetensors", a);
  put(fs, "/m/model-2.safetensors", b);
  const auto check = [&] {
    const auto folder = ckpt::TensorFolder::open(fs, "/m");
    CHECK(folder->names() == std::vector<std::string>{"a", "b"});
    CHECK(folder->shape("a") == std::vector<int64_t>{7});
    CHECK(folder->read_f32("b") == std::vector<float>{1.5f});
    const std::vector<float> half = folder->read_f32("a");
    CHECK((half[0] == 1 && half[1] == -2 && half[2] == std::ldexp(1.0f, -24) && half[3] == 65504 &&
           std::isinf(half[4]) && half[5] == 0 && std::signbit(half[5]) && std::isnan(half[6])));
    CHECK_FALSE(folder->has("c"));
    CHECK_THROWS_WITH(folder->shape("c"), Catch::Contains("no tensor c"));
  };
  check();
  put(fs, "/m/model.safetensors.index.json",
      R"({"metadata":{"total_size":22},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
  check();
  fs.remove_file("/m/model.safetensors.index.json");
  put(fs, "/m/model.safetensors.index.json", R"({"weight_map":{"a":"model-2.safetensors"}})");
  CHECK_THROWS_WITH(ckpt::TensorFolder::open(fs, "/m"),
                    Catch::Contains("model-2.safetensors holds a, but it does not"));
  fs.remove_file("/m/model.safetensors.index.json");
  put(fs, "/m/model.safetensors.index.json", R"({"weight_map":{"a":"model-3.safetensors"}})");
  CHECK_THROWS_WITH(ckpt::TensorFolder::open(fs, "/m"), Catch::Contains("model-3.safetensors, which is missing"));
  // The index and shards of a model that was there before.
  put(fs, "/m/model.safetensors", a);
  CHECK(ckpt::TensorFolder::open(fs, "/m")->names() == std::vector<std::string>{"a"});
  fs.make_directory("/empty");
  CHECK_THROWS_WITH(ckpt::TensorFolder::open(fs, "/empty"), Catch::Contains("holds no *.safetensors"));
}
