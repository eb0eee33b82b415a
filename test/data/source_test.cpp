// Goal: every supported token file is read exactly, and every broken one is refused with a sentence that names it.
// Method: golden files of the formats' own writers byte by byte; the small index truncated at every length and with every
// byte changed; one test per kind of damage.
#include <fstream>
#include <numeric>

#include "data/dataset.h"
#include "data/file_source.h"
#include "test/data/token_fixtures.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

std::vector<int32_t> all_tokens(const TokenSource& source) {
  std::vector<int32_t> ids(source.token_count());
  source.read(0, ids);
  return ids;
}

std::string llmc_shard(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  std::string bytes;
  append(bytes, magic);
  append(bytes, version);
  append(bytes, count);
  bytes.resize(1024, '\0');
  return bytes + tokens;
}

}  // namespace

namespace {

/// KiB of a mapped file that count as this process's memory.
int64_t resident_kib(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  int64_t sum = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos) inside = true;
    if (inside && line.rfind("Rss:", 0) == 0) {
      sum += std::stoll(line.substr(4));
      inside = false;
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("what a dataset has read is not kept as its memory", "[data]") {
  TemporaryFolder folder;
  constexpr size_t kTokens = size_t(1) << 20;
  write_bytes(folder / "a.bin", std::string(2 * kTokens, '\1'));   // id 257, a million times
  DatasetOptions options;
  options.sources = {{.path = folder / "a.bin", .format = Format::raw, .dtype = DType::u16}};
  options.seq_len = 1000;
  options.vocab_size = 300;
  const auto dataset = open_dataset(options);
  CHECK(resident_kib(folder / "a.bin") == 0);   // though every token was checked
  std::vector<int32_t> sample(1001);
  for (uint64_t i = 0; i < 50; ++i) dataset->sample(i, sample);
  CHECK(sample[1000] == 257);
  (void)dataset->fingerprints_json();
  CHECK(resident_kib(folder / "a.bin") == 0);
}

TEST_CASE("the golden Megatron pair is read by index, by .bin and by prefix", "[data]") {
  TemporaryFolder folder;
  REQUIRE(golden_idx().size() == 94);
  write_bytes(folder / "a.idx", golden_idx());
  write_bytes(folder / "a.bin", golden_bin());
  for (const char* name : {"a", "a.idx", "a.bin", "a*"}) {
    CAPTURE(name);
    const auto source = open_source({.path = folder / name});
    CHECK(all_tokens(*source) == std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9});
    CHECK(source->document_count() == 2);
    CHECK(source->token_bytes() == 2);
    CHECK(std::string(source->format_name()) == "megatron");
    CHECK(source->fingerprint().size() == 16);
    CHECK(source->files() == std::vector<std::string>{folder / "a.idx", folder / "a.bin"});
  }
  CHECK(document_lengths(open_megatron(folder / "a"), 9) == std::vector<uint64_t>{3, 6});
}

TEST_CASE("a Megatron index cut or changed anywhere is refused or harmless", "[data]") {
  TemporaryFolder folder;
  const std::string good = golden_idx();
  write_bytes(folder / "a.bin", golden_bin());
  for (size_t n = 0; n < good.size(); ++n) {
    CAPTURE(n);
    write_bytes(folder / "a.idx", good.substr(0, n));
    CHECK_THAT(data_error([&] { open_source({.path = folder / "a"}); }), Contains("a.idx"));
  }
  // A changed byte may give another valid index (reordered sequences); it must never read outside the files.
  for (size_t i = 0; i < good.size(); ++i)
    for (const int change : {1, 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = char(bad[i] ^ change);
      write_bytes(folder / "a.idx", bad);
      try {
        const auto source = open_source({.path = folder / "a"});
        CHECK(all_tokens(*source).size() <= 18);
      } catch (const Error& e) {
        CHECK(e.code() == ErrorCode::kData);
      }
    }
}

TEST_CASE("each kind of damage to a Megatron pair has its own sentence", "[data]") {
  TemporaryFolder folder;
  const auto message = [&](const std::string& idx, const std::string& bin) {
    write_bytes(folder / "a.idx", idx);
    write_bytes(folder / "a.bin", bin);
    return data_error([&] { open_source({.path = folder / "a"}); });
  };
  const auto changed = [](size_t at, char value) {
    std::string idx = golden_idx();
    idx[at] = value;
    return idx;
  };
  CHECK_THAT(message(changed(0, 'X'), golden_bin()), Contains("does not begin with MMIDIDX"));
  CHECK_THAT(message(changed(9, 2), golden_bin()), Contains("version 2 at byte 9"));
  CHECK_THAT(message(changed(17, 7), golden_bin()), Contains("dtype code 7 at byte 17 is a floating-point type"));
  CHECK_THAT(message(changed(17, 9), golden_bin()), Contains("dtype code 9 at byte 17 is unknown"));
  CHECK_THAT(message(changed(25, 0x7f), golden_bin()), Contains("truncated or corrupt"));
  CHECK_THAT(message(changed(37, char(0x80)), golden_bin()), Contains("sequence 0 has length"));
  CHECK_THAT(message(changed(70, 1), golden_bin()), Contains("document 0 starts at sequence 1"));
  CHECK_THAT(message(changed(86, 2), golden_bin()), Contains("ends at sequence 2 of 3"));
  CHECK_THAT(message(golden_idx(), golden_bin().substr(0, 17)), Contains("a.bin ends at 17"));
  CHECK_THAT(message(golden_idx(), golden_bin() + "xx"), Contains("do not belong together"));
  CHECK_THAT(message(golden_idx() + "xx", golden_bin()), Contains("corrupt"));
  CHECK_THAT(message("", golden_bin()), Contains("a.idx has 0 bytes"));
  CHECK_THAT(message(golden_idx(), ""), Contains("a.bin ends at 0"));
  std::remove((folder / "a.bin").c_str());
  CHECK_THAT(data_error([&] { open_source({.path = folder / "a"}); }), Contains("cannot open " + (folder / "a.bin")));
}

TEST_CASE("sequence modes behind the index and sequences out of order are accepted", "[data]") {
  TemporaryFolder folder;
  write_bytes(folder / "a.bin", golden_bin());
  write_bytes(folder / "a.idx", golden_idx() + std::string(3, '\0'));
  CHECK(open_source({.path = folder / "a"})->token_count() == 9);
  std::string idx = golden_idx();
  idx[46] = 8, idx[54] = 14, idx[62] = 0;  // [5 6 7], [8 9], [1 2 3 4]
  write_bytes(folder / "a.idx", idx);
  CHECK(all_tokens(*open_source({.path = folder / "a"})) == std::vector<int32_t>{5, 6, 7, 8, 9, 1, 2, 3, 4});
}

TEST_CASE("every integer dtype of a Megatron pair is read", "[data]") {
  TemporaryFolder folder;
  const auto check = [&]<typename T>(T, char code) {
    std::string idx = golden_idx(), bin;
    idx[17] = code;
    for (int i = 1; i <= 9; ++i) append(bin, T(i * 9));
    const int width = sizeof(T);
    idx[54] = char(3 * width), idx[62] = char(5 * width);
    write_bytes(folder / "a.idx", idx);
    write_bytes(folder / "a.bin", bin);
    const auto source = open_source({.path = folder / "a"});
    CHECK(all_tokens(*source) == std::vector<int32_t>{9, 18, 27, 36, 45, 54, 63, 72, 81});
    CHECK(source->token_bytes() == width);
  };
  check(uint8_t{}, 1), check(int8_t{}, 2), check(int16_t{}, 3), check(int32_t{}, 4), check(int64_t{}, 5), check(uint16_t{}, 8);
}

TEST_CASE("the golden llm.c shards of both flavours are read; damaged ones are refused", "[data]") {
  TemporaryFolder folder;
  std::string gpt2 = unhex("88d83401 01000000 04000000"), llama = unhex("a1d93401 07000000 04000000");
  gpt2.resize(1024, '\0'), llama.resize(1024, '\0');
  gpt2 += unhex("50c4 0100 0200 0300"), llama += unhex("00f40100 01000000 02000000 03000000");
  REQUIRE(gpt2.size() == 1032);
  REQUIRE(llama.size() == 1040);
  write_bytes(folder / "g.bin", gpt2);
  write_bytes(folder / "l.bin", llama);
  CHECK(all_tokens(*open_source({.path = folder / "g.bin"})) == std::vector<int32_t>{50256, 1, 2, 3});
  CHECK(all_tokens(*open_source({.path = folder / "l"})) == std::vector<int32_t>{128000, 1, 2, 3});
  CHECK(open_source({.path = folder / "l"})->document_count() == 0);
  CHECK(all_tokens(*open_source({.path = folder / "?.bin"})) == std::vector<int32_t>{50256, 1, 2, 3, 128000, 1, 2, 3});

  const auto message = [&](const std::string& bytes) {
    write_bytes(folder / "b.bin", bytes);
    return data_error([&] { open_source({.path = folder / "b.bin", .format = Format::llmc}); });
  };
  for (size_t n = 0; n < gpt2.size(); ++n) CHECK_THAT(message(gpt2.substr(0, n)), Contains("b.bin"));
  CHECK_THAT(message(gpt2 + "x"), Contains("has 1033 bytes") && Contains("4 tokens of 2 bytes, 1032 in all"));
  CHECK_THAT(message(llmc_shard(20240522, 1, 0, "")), Contains("evaluation shard"));
  CHECK_THAT(message(llmc_shard(20240520, 2, 1, "ab")), Contains("version 2"));
  CHECK_THAT(message(llmc_shard(20240801, 1, 1, "abcd")), Contains("version 1"));
  CHECK_THAT(message(llmc_shard(20240520, 1, -1, "")), Contains("announces -1 tokens"));
  CHECK_THAT(message(llmc_shard(20240520, 1, 0, "")), Contains("holds no tokens"));
  CHECK_THAT(message(std::string(2000, 'x')), Contains("written without a header") && Contains("\"raw\""));
  CHECK_THAT(data_error([&] {
               write_bytes(folder / "e.bin", llmc_shard(20240522, 1, 0, ""));
               open_source({.path = folder / "e.bin"});
             }),
             Contains("evaluation shard"));
}

TEST_CASE("raw files need a dtype and a whole number of tokens", "[data]") {
  TemporaryFolder folder;
  write_bytes(folder / "t.bin", unhex("0100 0200 0300 0400"));
  const std::string path = folder / "t.bin";
  CHECK(all_tokens(*open_source({.path = path, .format = Format::raw, .dtype = DType::u16})) == std::vector<int32_t>{1, 2, 3, 4});
  CHECK(all_tokens(*open_source({.path = path, .dtype = DType::u16})).size() == 4);
  CHECK(all_tokens(*open_source({.path = path, .dtype = DType::u32})) == std::vector<int32_t>{0x20001, 0x40003});
  CHECK_THAT(data_error([&] { open_source({.path = path}); }), Contains("of no known format") && Contains("\"dtype\""));
  CHECK_THAT(data_error([&] { open_source({.path = path, .format = Format::raw}); }), Contains("say \"dtype\""));
  CHECK_THAT(data_error([&] { open_source({.path = path, .dtype = DType::f32}); }), Contains("cannot be f32"));
  write_bytes(path, "abc");
  CHECK_THAT(data_error([&] { open_source({.path = path, .dtype = DType::u16}); }), Contains("has 3 bytes, no multiple of the 2"));
  write_bytes(path, "");
  CHECK_THAT(data_error([&] { open_source({.path = path, .dtype = DType::u16}); }), Contains("is empty"));
}

TEST_CASE("paths that lead nowhere say what was tried", "[data]") {
  TemporaryFolder folder;
  const std::string path = folder / "x";
  CHECK_THAT(data_error([&] { open_source({.path = path}); }),
             Contains("there is no token file " + path) && Contains(".idx or .bin behind its name"));
  CHECK_THAT(data_error([&] { open_source({.path = folder / "*.bin"}); }), Contains("no file matches"));
  CHECK_THAT(data_error([&] { open_source({.path = folder.path()}); }), Contains("is a folder"));
  CHECK_THAT(data_error([&] { open_source({.path = ""}); }), Contains("empty path"));
  write_bytes(folder / "a.txt", "some text");
  CHECK_THAT(data_error([&] { open_source({.path = folder / "a.txt"}); }), Contains("trainctl data tokenize"));
  write_bytes(folder / "m1.bin", "1234");
  write_bytes(folder / "m0.idx", golden_idx());
  write_bytes(folder / "m0.bin", golden_bin());
  CHECK_THAT(data_error([&] { open_source({.path = folder / "m*", .dtype = DType::u16}); }), Contains("two formats"));
  CHECK_THAT(data_error([&] { open_source({.path = folder / "m0", .dtype = DType::u32}); }),
             Contains("holds u16 tokens") && Contains("\"u32\""));
}

TEST_CASE("a fingerprint tells content apart and ignores the place", "[data]") {
  TemporaryFolder folder;
  std::string big(5 << 20, 'a');
  const auto fingerprint = [&](const std::string& name, const std::string& bytes) {
    write_bytes(folder / name, bytes);
    return open_source({.path = folder / name, .dtype = DType::u16})->fingerprint();
  };
  const std::string first = fingerprint("a.bin", big);
  CHECK(fingerprint("b.bin", big) == first);
  big.front() = 'b';
  CHECK(fingerprint("a.bin", big) != first);
  big.front() = 'a', big.back() = 'b';
  CHECK(fingerprint("a.bin", big) != first);
  big.back() = 'a';
  CHECK(fingerprint("a.bin", big + "aa") != first);
}
