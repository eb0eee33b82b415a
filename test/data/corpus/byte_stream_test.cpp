// Goal: a compressed file gives the bytes that were packed, in any pieces; one that is cut or damaged is
// refused with its name and the byte.
// Method: files of one and several members or frames, read in pieces of many sizes; each length that a file
// can be cut to; each byte changed.
#include <map>
#include <random>

#include "data/corpus/byte_stream.h"
#include "test/data/corpus/pack.h"
#include "test/data/token_fixtures.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

std::string unpacked(const std::string& path, size_t piece) {
  const auto stream = open_bytes(real_file_system(), path);
  std::string all;
  std::vector<char> buffer(piece);
  for (size_t n = piece; n == piece; all.append(buffer.data(), n)) n = stream->read(buffer);
  CHECK(stream->stored_bytes() == read_bytes(path).size());
  return all;
}

std::string some_text(size_t bytes) {
  std::mt19937 random(3);
  std::string text;
  while (text.size() < bytes)
    text += "word" + std::to_string(random() % 1000) + (random() % 9 == 0 ? "\n" : " ");
  text.resize(bytes);
  return text;
}

}  // namespace

TEST_CASE("compressed files give what was packed, in any pieces", "[corpus]") {
  TemporaryFolder folder;
  const std::string text = some_text(700'000), more = some_text(5);
  const std::string run(3'000'000, 'x');  // the decoder gives much more than it takes
  const std::map<std::string, std::string> files{
      {"a.gz", gzipped(text)},
      {"b.gz", gzipped(text) + gzipped("") + gzipped(more)},
      {"c.gz", gzipped(run)},
      {"a.zst", zstd_packed(text)},
      {"b.zst", zstd_packed(text) + zstd_packed("") + zstd_packed(more)},
      {"c.zst", zstd_packed(run)},
      {"a.txt", text},
      {"padded.gz", gzipped(text) + std::string(600'000, '\0')}};
  for (const auto& [name, bytes] : files) {
    write_bytes(folder / name, bytes);
    const std::string expected = name[0] == 'c' ? run : name[0] == 'b' ? text + more : text;
    for (const size_t piece : {size_t(1) << 22, size_t(65536), size_t(1000)}) {
      CAPTURE(name, piece);
      CHECK(unpacked(folder / name, piece) == expected);
    }
    CHECK(content_bytes(real_file_system(), folder / name) == expected.size());
    const auto stream = open_bytes(real_file_system(), folder / name);
    stream->skip(12'345);
    std::string after(100, '\0');
    CHECK(stream->read(after) == 100);
    CHECK(after == expected.substr(12'345, 100));
    CHECK_THROWS_AS(stream->skip(expected.size()), Error);
  }
}

TEST_CASE("files cut at any byte, or with a byte changed, are refused", "[corpus]") {
  TemporaryFolder folder("test", "/dev/shm");
  const std::string text = some_text(300);
  for (const char* name : {"a.gz", "a.zst"}) {
    const std::string packed = std::string(name) == "a.gz" ? gzipped(text) : zstd_packed(text);
    const std::string path = folder / name;
    for (size_t length = 0; length < packed.size(); ++length) {
      write_bytes(path, packed.substr(0, length));
      CAPTURE(name, length);
      CHECK_THAT(data_error([&] { unpacked(path, 1000); }),
                 Contains(path + " is truncated: it ends at byte " + std::to_string(length)));
      write_bytes(path, packed + packed.substr(0, length));
      if (length > 0) CHECK_THAT(data_error([&] { unpacked(path, 1000); }), Contains("is truncated"));
    }
    for (size_t at = 0; at < packed.size(); ++at) {
      std::string changed = packed;
      changed[at] = char(changed[at] ^ 0x10);
      write_bytes(path, changed);
      CAPTURE(name, at);
      std::string got;
      try {
        got = unpacked(path, 1000);
      } catch (const Error& e) {
        CHECK(e.code() == ErrorCode::kData);
        CHECK_THAT(e.what(), Contains(path + " is "));
        continue;
      }
      // Without a checksum of the content (zstd's default), or in fields that carry no content.
      if (std::string(name) == "a.gz") CHECK(got == text);
    }
    write_bytes(path, packed + "rest");
    CHECK_THAT(data_error([&] { unpacked(path, 1000); }), Contains("is damaged at byte"));
  }
  write_bytes(folder / "padded.gz", gzipped(text) + std::string(9, '\0') + "x");
  CHECK_THAT(data_error([&] { unpacked(folder / "padded.gz", 1000); }), Contains("bytes follow the zeros"));
  write_bytes(folder / "no.gz", "plain text\n");
  CHECK_THAT(data_error([&] { unpacked(folder / "no.gz", 1000); }), Contains("is damaged at byte"));
  CHECK_THAT(data_error([&] { open_bytes(real_file_system(), folder / "none.zst"); }), Contains("none.zst"));
  CHECK_THAT(data_error([&] { open_bytes(real_file_system(), folder.path()); }), Contains("is a folder"));
  CHECK_THAT(data_error([&] { open_bytes(real_file_system(), "/dev/null"); }),
             Contains("is not a regular file"));
}
