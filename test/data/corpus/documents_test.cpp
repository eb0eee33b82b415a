// Goal: every format gives the same documents as JSON lines; blocks can be read from any end of a block on;
// what is bad is named with its place, or left out and counted; damage ends a file, not the corpus.
// Method: one list of texts in each format, blocks of several sizes; files with faults at known places.
#include <map>

#include "data/corpus/corpus_reader.h"
#include "runtime/base/json.h"
#include "test/data/corpus/pack.h"
#include "test/data/token_fixtures.h"
#include "test/support/power_loss_file_system.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

std::vector<std::string> some_texts() {
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) {
    std::string text = "text " + std::to_string(i);
    for (int n = 0; n < i % 9; ++n) text += n % 2 ? "\nGröße \"quoted\" \\" : "\t你好 end";
    texts.push_back(text);
  }
  return texts;
}

std::string line_of(const std::string& text) {
  Json object;
  object["id"] = text.size();
  object["text"] = text;
  return dump_json(object) + "\n";
}

std::vector<std::string> read_all(DocumentReader& reader) {
  std::vector<std::string> texts;
  for (Document document; reader.next(document);) texts.emplace_back(document.text);
  return texts;
}

}  // namespace

TEST_CASE("every format gives the same documents", "[corpus]") {
  TemporaryFolder folder;
  const auto texts = some_texts();
  std::string lines, plain;
  for (const std::string& text : texts) {
    lines += line_of(text);
    plain += text + "\n<|endoftext|>\n";
  }
  std::vector<std::string> plain_texts = texts;
  for (std::string& text : plain_texts) text += "\n";
  write_bytes(folder / "a.jsonl", lines);
  write_bytes(folder / "a.ndjson.gz", gzipped(lines.substr(0, 5000)) + gzipped(lines.substr(5000)));
  write_bytes(folder / "a.json.zst", zstd_packed(lines.substr(0, 9000)) + zstd_packed(lines.substr(9000)));
  write_bytes(folder / "a.txt", plain);
  write_bytes(folder / "a.txt.gz", gzipped(plain));
  write_bytes(folder / "a.zst", zstd_packed(plain));
  for (const char* name : {"a.jsonl", "a.ndjson.gz", "a.json.zst", "a.txt", "a.txt.gz", "a.zst"})
    for (const size_t block : {64, 1000, 1 << 20}) {
      CAPTURE(name, block);
      const CorpusOptions options{
          .files = {folder / name, folder / name}, .separator = "<|endoftext|>", .block_bytes = block};
      const bool is_json = std::string(name).find("json") != std::string::npos;
      const auto& once = is_json ? texts : plain_texts;
      auto expected = once;
      expected.insert(expected.end(), once.begin(), once.end());
      const auto reader = open_corpus(real_file_system(), options);
      CHECK(read_all(*reader) == expected);
      // From the end of every block on.
      BlockReader blocks(real_file_system(), options);
      Block part;
      size_t before = 0;
      uint64_t stored = 0;
      while (blocks.next(part)) {
        BlockDocuments in_block(part, options);
        for (Document document; in_block.next(document); ++before) {
          CHECK(document.text == expected[before]);
          CHECK(document.number == before % texts.size() + 1);
          if (is_json) CHECK(std::string(document.line) + "\n" == line_of(std::string(document.text)));
        }
        CHECK(part.stored_bytes >= stored);
        stored = part.stored_bytes;
        if (part.end.number % 37 != 0) continue;
        BlockReader rest(real_file_system(), options);
        rest.seek(part.end);
        Block next;
        if (!rest.next(next)) continue;
        BlockDocuments in_next(next, options);
        Document document;
        REQUIRE(in_next.next(document));
        CHECK(document.text == expected[before]);
      }
      CHECK(before == expected.size());
      CHECK(stored == blocks.stored_bytes());
    }
}

TEST_CASE("bad lines are an error at the first, or left out and named", "[corpus]") {
  TemporaryFolder folder;
  const std::string path = folder / "a.jsonl.gz";
  const std::string bad = line_of("one") + "no json\n" + line_of("two") +
                          "\n{\"other\":1}\n{\"text\":\"\"}\n{\"text\":3}\n" + line_of("three");
  write_bytes(path, gzipped(bad));
  for (const size_t block : {16, 1 << 20}) {
    CorpusOptions options{.files = {path}, .block_bytes = block};
    CHECK_THAT(data_error([&] { read_all(*open_corpus(real_file_system(), options)); }),
               Contains(path + ", line 2: no JSON object"));
    options.skip_bad = true;
    const auto reader = open_corpus(real_file_system(), options);
    CHECK(read_all(*reader) == std::vector<std::string>{"one", "two", "three"});
    CHECK(reader->empty_documents() == 1);
    REQUIRE(reader->left_out_count() == 3);
    CHECK(reader->left_out()[0].place == path + ", line 2");
    CHECK(reader->left_out()[1].place == path + ", line 5");
    CHECK_THAT(reader->left_out()[1].why, Contains("no string under \"text\" (keys: other)"));
    CHECK(reader->left_out()[2].place == path + ", line 7");
  }
  write_bytes(folder / "u.jsonl", std::string("\xff\xfe{\0\"\0t\0", 8));
  CHECK_THAT(data_error([&] { read_all(*open_corpus(real_file_system(), {.files = {folder / "u.jsonl"}})); }),
             Contains("line 1") && Contains("UTF-16"));
}

TEST_CASE("the rest of a damaged file is left out as one record", "[corpus]") {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 20'000; ++i) lines += line_of("text " + std::to_string(i * 7919));
  const std::string packed = gzipped(lines);
  write_bytes(folder / "cut.jsonl.gz", packed.substr(0, packed.size() / 2));
  write_bytes(folder / "whole.jsonl", line_of("after"));
  CorpusOptions options{.files = {folder / "cut.jsonl.gz", folder / "whole.jsonl"}, .block_bytes = 4096};
  CHECK_THAT(data_error([&] { read_all(*open_corpus(real_file_system(), options)); }),
             Contains("cut.jsonl.gz is truncated: it ends at byte " + std::to_string(packed.size() / 2)));
  options.skip_bad = true;
  const auto reader = open_corpus(real_file_system(), options);
  const auto texts = read_all(*reader);
  CHECK(texts.size() > 5000);
  CHECK(texts.size() < 15'000);
  CHECK(texts.back() == "after");
  REQUIRE(reader->left_out_count() == 1);
  CHECK_THAT(reader->left_out()[0].why,
             Contains("is truncated") && Contains("the rest of this file is left out"));
  // Inside a plain text its document ends.
  write_bytes(folder / "cut.txt.gz", packed.substr(0, packed.size() / 2));
  options.files = {folder / "cut.txt.gz", folder / "whole.jsonl"};
  options.cut = [](std::string_view text, size_t limit) { return std::min(text.size(), limit); };
  BlockReader blocks(real_file_system(), options);
  Block block;
  bool inside = false;
  while (blocks.next(block)) inside = block.goes_on;
  CHECK_FALSE(inside);
}

TEST_CASE("a disk that does not answer is no bad record: nothing is left out for it", "[corpus]") {
  const std::string lines = line_of("one") + line_of("two"), text = "one\ntwo\n";
  const std::string table =
      read_bytes(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/parquet/list-1.parquet");
  for (const auto& [name, bytes] : std::map<std::string, std::string>{{"/a.jsonl", lines},
                                                                      {"/a.jsonl.gz", gzipped(lines)},
                                                                      {"/a.jsonl.zst", zstd_packed(lines)},
                                                                      {"/a.txt", text},
                                                                      {"/a.parquet", table}}) {
    CAPTURE(name);
    trainctl::test::PowerLossFileSystem fs;
    fs.create(name)->write_at(0, std::as_bytes(std::span(bytes)));
    fs.fail_reads_of(name);
    thrown(ErrorCode::kIo, [&, &name = name] {
      const auto reader = open_corpus(fs, {.files = {name}, .skip_bad = true});
      Document document;
      while (reader->next(document)) {
      }
    });
    fs.repair();
    const auto reader = open_corpus(fs, {.files = {name}, .skip_bad = true});
    Document document;
    CHECK(reader->next(document));
    CHECK(reader->left_out_count() == 0);
  }
}

TEST_CASE("the names whose endings say how to read them", "[corpus]") {
  for (const char* name : {"a.jsonl", "p/a.ndjson.gz", "a.json.zst", "a.txt", "a.b.txt.gz", "a.parquet"}) {
    CAPTURE(name);
    CHECK(has_known_ending(name));
  }
  for (const char* name : {"a", "_SUCCESS", "a.csv", "a.gz", "a.parquet.gz", "a.jsonl.crc", "a.xz", ""}) {
    CAPTURE(name);
    CHECK_FALSE(has_known_ending(name));
  }
}

TEST_CASE("files that cannot be read are named before anything is read", "[corpus]") {
  TemporaryFolder folder;
  write_bytes(folder / "a.jsonl", line_of("one"));
  for (const char* name : {"none.jsonl", "a.xz", "a.tar", "a.arrow"})
    CHECK_THAT(data_error([&] {
                 open_corpus(real_file_system(), {.files = {folder / "a.jsonl", folder / name}});
               }),
               Contains(name));
  CHECK_THAT(data_error([&] { open_corpus(real_file_system(), {}); }), Contains("no text files"));
}

TEST_CASE("what a file holds decides how it is read, whatever its name", "[corpus]") {
  TemporaryFolder folder;
  const std::string lines = line_of("one") + line_of(std::string(200'000, 'x')) + line_of("three");
  for (const char* name :
       {"A.JSONL", "part-00000", "x.jsonl.1", "train.jsonlines", "b.Json", "c.txt", "d.gz"}) {
    CAPTURE(name);
    const std::string path = folder / name;
    write_bytes(path, path.ends_with(".gz") ? gzipped(lines) : lines);
    CHECK(read_all(*open_corpus(real_file_system(), CorpusOptions{.files = {path}})).size() == 3);
  }
  const std::string long_line = folder / "long";
  write_bytes(long_line, line_of(std::string(200'000, 'x')) + line_of("two"));
  CHECK(read_all(*open_corpus(real_file_system(), CorpusOptions{.files = {long_line}})).size() == 2);
  // Text that only looks like it, and lines of another key.
  for (const std::string text : {"{ a brace\n", "{\"other\": 1}\n", "\n{\"text\": \"x\"}\n"}) {
    write_bytes(folder / "plain", text);
    CHECK(read_all(*open_corpus(real_file_system(), CorpusOptions{.files = {folder / "plain"}})) ==
          std::vector<std::string>{text});
  }
}

TEST_CASE("a refused line says why and where", "[corpus]") {
  TemporaryFolder folder;
  const std::string path = folder / "a.jsonl";
  const auto why = [&](const std::string& line) {
    write_bytes(path, line + "\n");
    return data_error([&] { read_all(*open_corpus(real_file_system(), CorpusOptions{.files = {path}})); });
  };
  CHECK_THAT(why(R"({"text":"a","score":NaN})"),
             Contains("line 1: no JSON object: NaN is no JSON value (column 21)"));
  CHECK_THAT(why(R"({"text":"a","score":-Infinity})"), Contains(": Infinity is no JSON value"));
  CHECK_THAT(why(R"({"text":"\ud83d"})"), Contains("surrogate"));
  CHECK_THAT(why(R"([{"text":"a"}])"), Contains(": it is an array"));
  CHECK_THAT(why(R"({"text":"a",})"), Contains("(column 13)"));
  CHECK_THAT(why("{\"text\":\"\xff\"}"), Contains(", the line is not UTF-8"));
  CHECK_THAT(why("version https://git-lfs.github.com/spec/v1"), Contains(path + " is a Git LFS pointer"));
}
