// Goal: a Parquet file gives the rows that its writer says it has; what cannot be read is refused by its
// name; a file that is cut or damaged is refused, whatever byte it is.
// Method: files of pyarrow (test/golden/parquet/make_parquet.py), read in blocks of several sizes and from
// every row on; all truncations and one change of each byte of small ones; the decoder of snappy by hand.
#include <algorithm>
#include <map>

#include "data/corpus/corpus_reader.h"
#include "data/corpus/parquet/string_column.h"
#include "data/corpus/parquet/unpack.h"
#include "runtime/base/json.h"
#include "test/data/token_fixtures.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

const std::string kFolder = std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/parquet/";

Json golden(const std::string& name) { return parse_json(read_bytes(kFolder + name + ".json")); }

/// The rows of a file; a null is an empty text.
std::vector<std::string> rows_of(const std::string& path, const std::string& column, uint64_t from = 0) {
  parquet::StringColumn reader(real_file_system().open_read(path), path, column, 1 << 20);
  reader.seek(from);
  std::vector<std::string> rows(1);
  while (reader.next(rows.back())) rows.emplace_back();
  rows.pop_back();
  return rows;
}

std::vector<std::string> expected_rows(const Json& file) {
  std::vector<std::string> rows;
  for (const auto& row : file.at("rows")) rows.push_back(row.is_null() ? "" : row.get<std::string>());
  return rows;
}

}  // namespace

TEST_CASE("parquet: the rows of many shapes of files", "[corpus]") {
  const auto all = golden("rows");
  for (const auto& [name, file] : all.items()) {
    CAPTURE(name);
    const std::string path = kFolder + name + ".parquet", column = file.at("column");
    const auto expected = expected_rows(file);
    CHECK(rows_of(path, column) == expected);
    for (size_t from = 0; from <= expected.size(); from += 1 + expected.size() / 16)
      CHECK(rows_of(path, column, from) ==
            std::vector<std::string>(expected.begin() + long(from), expected.end()));
  }
}

TEST_CASE("parquet: the same documents as JSON lines of the same texts", "[corpus]") {
  TemporaryFolder folder;
  const auto all = golden("rows");
  for (const auto& [name, file] : all.items()) {
    CAPTURE(name);
    const std::string column = file.at("column");
    std::string lines;
    for (const auto& row : file.at("rows")) {
      Json object;
      object[column] = row.is_null() ? "" : row.get<std::string>();
      lines += dump_json(object) + "\n";
    }
    write_bytes(folder / "same.jsonl", lines);
    for (const size_t block : {1, 100, 1 << 20}) {
      const auto table =
          open_corpus(real_file_system(),
                      {.files = {kFolder + name + ".parquet"}, .text_key = column, .block_bytes = block});
      const auto jsonl = open_corpus(
          real_file_system(), {.files = {folder / "same.jsonl"}, .text_key = column, .block_bytes = block});
      Document row, line;
      while (jsonl->next(line)) {
        REQUIRE(table->next(row));
        CHECK(row.text == line.text);
        CHECK(row.number == line.number);
        CHECK(place_of(row) == kFolder + name + ".parquet, row " + std::to_string(line.number));
      }
      CHECK_FALSE(table->next(row));
      CHECK(table->empty_documents() == jsonl->empty_documents());
    }
  }
}

TEST_CASE("parquet: what cannot be read is refused by its name", "[corpus]") {
  const auto all = golden("refused");
  for (const auto& [name, file] : all.items()) {
    CAPTURE(name);
    const std::string path = kFolder + name + ".parquet";
    const std::string error = data_error([&] { rows_of(path, file.at("column")); });
    CHECK_THAT(error, Contains(path));
    for (const auto& word : file.at("names")) CHECK_THAT(error, Contains(word.get<std::string>()));
  }
}

TEST_CASE("parquet: a row above the limit is refused or left out", "[corpus]") {
  const std::string path = kFolder + "list-1.parquet";
  const auto rows = expected_rows(golden("rows").at("list-1"));
  const size_t limit = 100;
  const auto long_rows =
      size_t(std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.size() > limit; }));
  REQUIRE(long_rows > 3);
  CorpusOptions options{.files = {path}, .longest_document = limit};
  options.cut = [](std::string_view text, size_t) { return text.size(); };  // as for tokenizing
  const auto read = [&] {
    BlockReader blocks(real_file_system(), options);
    Block block;
    size_t documents = 0, left_out = 0;
    while (blocks.next(block)) {
      BlockDocuments in_block(block, options);
      for (Document document; in_block.next(document); ++documents) CHECK(document.text.size() <= limit);
      left_out += in_block.left_out().size();
    }
    CHECK(left_out == long_rows);
    return documents;
  };
  CHECK_THAT(data_error(read), Contains(path + ", row ") && Contains("longer than 100 B"));
  options.skip_bad = true;
  CHECK(read() == size_t(std::count_if(rows.begin(), rows.end(), [&](const auto& row) {
          return !row.empty() && row.size() <= limit;
        })));
}

TEST_CASE("parquet: files cut at any byte, or with any byte changed, are refused or read", "[corpus]") {
  TemporaryFolder folder("test", "/dev/shm");
  const std::string path = folder / "a.parquet";
  for (const char* name :
       {"dictionary-1-snappy", "dictionary-2-zstd", "plain-1-gzip", "plain-2-none", "required-list"}) {
    const std::string bytes = read_bytes(kFolder + name + ".parquet");
    const auto expected = rows_of(kFolder + name + ".parquet", "text");
    for (size_t length = 0; length < bytes.size(); length += 1 + bytes.size() / 500) {
      write_bytes(path, bytes.substr(0, length));
      CAPTURE(name, length);
      CHECK_THAT(data_error([&] { rows_of(path, "text"); }), Contains(path));
    }
    for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 1000) {
      std::string changed = bytes;
      changed[at] = char(changed[at] ^ (1 << at % 8));
      write_bytes(path, changed);
      CAPTURE(name, at);
      try {
        rows_of(path, "text");
      } catch (const Error& e) {
        CHECK(e.code() == ErrorCode::kData);
        CHECK_THAT(e.what(), Contains(path));
      }
    }
  }
}

TEST_CASE("parquet: pages with checksums find every change of their bytes", "[corpus]") {
  TemporaryFolder folder("test", "/dev/shm");
  const std::string path = folder / "a.parquet", name = kFolder + "many-pages.parquet";
  const std::string bytes = read_bytes(name);
  const auto expected = rows_of(name, "text");
  int refused = 0;
  for (size_t at = 4; at < bytes.size() / 2; at += 3) {
    std::string changed = bytes;
    changed[at] = char(changed[at] ^ 4);
    write_bytes(path, changed);
    std::vector<std::string> rows;
    try {
      rows = rows_of(path, "text");
    } catch (const Error& e) {
      ++refused;
      continue;
    }
    CAPTURE(at);
    CHECK(rows == expected);  // the byte is of another column, or of statistics
  }
  CHECK(refused > 300);
}

TEST_CASE("snappy: literals, copies and what is damaged", "[corpus]") {
  const auto unpacked = [](const std::string& packed, size_t bytes) {
    std::string out(bytes, '\0');
    return parquet::unpack_snappy(packed, out) ? out : "damaged";
  };
  CHECK(unpacked(std::string("\x00", 1), 0) == "");
  CHECK(unpacked("\x03\x08"
                 "abc",
                 3) == "abc");
  CHECK(unpacked(std::string("\x46\xf0\x45", 3) + std::string(70, 'a'), 70) ==
        std::string(70, 'a'));  // length in a byte
  CHECK(unpacked(std::string("\x0b\x08"
                             "abc\x11\x03",
                             7),
                 11) == "abcabcabcab");  // 1-byte copy over itself
  CHECK(unpacked(std::string("\x09\x08"
                             "abc\x16\x03\x00",
                             8),
                 9) == "abcabcabc");  // 2-byte copy
  CHECK(unpacked(std::string("\x09\x08"
                             "abc\x17\x03\x00\x00\x00",
                             10),
                 9) == "abcabcabc");  // 4-byte copy
  for (const std::string& broken :
       {std::string(), std::string("\x03"),
        std::string("\x03\x08"
                    "ab"),
        std::string("\x03\x0c"
                    "abcd"),
        std::string("\x04\x08"
                    "abc"),
        std::string("\x05\x08"
                    "abc\x05\x04"),
        std::string("\x07\x08"
                    "abc\x01\x00",
                    7),
        std::string("\x07\x08"
                    "abc\x01"),
        std::string("\xff\xff\xff\xff\xff\x01"), std::string("\x03\xf0"), std::string("\x03\x17\x01\x00")})
    CHECK(unpacked(broken, 3) == "damaged");
}
