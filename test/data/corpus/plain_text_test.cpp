// Goal: plain text is divided at its separators and nowhere else, in blocks of any size and from any block
// on; a text without separator streams in parts; a document above the limit is refused or left out with its
// place.
// Method: seeded texts against a division of the whole text in memory; each end of a block as a start.
#include <random>

#include "data/corpus/corpus_reader.h"
#include "data/tokenizer.h"
#include "test/data/corpus/pack.h"
#include "test/data/token_fixtures.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

/// The documents of a text, by a division of the whole.
std::vector<std::string> divided(const std::string& text, const std::string& separator) {
  std::vector<std::string> documents(1);
  if (separator.find('\n') != separator.npos) {
    size_t at = 0;
    for (size_t next; (next = text.find(separator, at)) != text.npos; at = next + separator.size()) {
      documents.back() = text.substr(at, next - at);
      documents.emplace_back();
    }
    documents.back() = text.substr(at);
  } else {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
      const std::string line = text.substr(at, end - at);
      if (line == separator || line == separator + "\n" || line == separator + "\r\n" ||
          line == separator + "\r")
        documents.emplace_back();
      else
        documents.back() += line;
      at = end;
    }
  }
  std::erase(documents, "");
  return documents;
}

struct Read {
  std::vector<std::string> documents;
  uint64_t empty = 0, left_out = 0;
  std::vector<CorpusPosition> ends;  ///< of blocks
  std::vector<size_t> complete;      ///< documents that were complete there
};

Read read_from(const CorpusOptions& options, const CorpusPosition& position) {
  Read read;
  BlockReader blocks(real_file_system(), options);
  if (position != CorpusPosition{}) blocks.seek(position);
  Block block;
  bool inside = position.in_document;
  if (inside) read.documents.emplace_back();
  while (blocks.next(block)) {
    BlockDocuments in_block(block, options);
    size_t n = 0;
    for (Document document; in_block.next(document); ++n) {
      if (n > 0 || !inside) read.documents.emplace_back();
      read.documents.back() += document.text;
      if (!inside && n == 0 && block.kind == Block::Kind::texts)
        CHECK(block.bytes.compare(document.offset - block.begin.offset, document.text.size(),
                                  document.text) == 0);
    }
    CHECK(block.begin.in_document == inside);
    inside = block.goes_on;
    CHECK(block.end.in_document == inside);
    read.empty += in_block.empty_documents();
    read.left_out += block.left_out.size() + in_block.left_out().size();
    read.ends.push_back(block.end);
    read.complete.push_back(read.documents.size() - inside);
  }
  CHECK_FALSE(inside);
  return read;
}

size_t cut_anywhere(std::string_view text, size_t limit) {
  return text.size() <= limit ? text.size() : limit - limit % 3;
}

}  // namespace

TEST_CASE("plain text: separators divide it in blocks of any size", "[corpus]") {
  const uint64_t seed = trainctl::test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random{uint32_t(seed)};
  TemporaryFolder folder;
  const std::vector<std::string> pieces{"word ",   "\n",      "\n", "\r\n",   "END",     "END\n",
                                        "END\r\n", "\nEND\n", "EN", " END\n", "ENDED\n", "é"};
  for (int round = 0; round < 60; ++round) {
    std::string text;
    for (int n = int(random() % 60); n > 0; --n) text += pieces[random() % pieces.size()];
    if (text.empty()) text = "x";
    for (const std::string& separator : {std::string("\n\n"), std::string("END"), std::string("\nEND\n")}) {
      const auto expected = divided(text, separator);
      const char* name = round % 3 == 0 ? "a.txt" : round % 3 == 1 ? "a.txt.gz" : "a.txt.zst";
      write_bytes(folder / name, round % 3 == 0 ? text : round % 3 == 1 ? gzipped(text) : zstd_packed(text));
      for (const size_t block : {8, 13, 40, 1 << 20})
        for (const bool cuts : {false, true}) {
          CorpusOptions options{.files = {folder / name}, .separator = separator, .block_bytes = block};
          if (cuts) options.cut = cut_anywhere;
          CAPTURE(round, text, separator, block, cuts);
          const Read all = read_from(options, {});
          REQUIRE(all.documents == expected);
          for (size_t i = 0; i < all.ends.size(); i += 1 + all.ends.size() / 5) {
            const Read rest = read_from(options, all.ends[i]);
            const bool inside = all.ends[i].in_document;
            const std::vector<std::string> wanted(expected.begin() + long(all.complete[i] + inside),
                                                  expected.end());
            std::vector<std::string> got = rest.documents;
            if (inside) got.erase(got.begin());
            REQUIRE(got == wanted);
          }
          const auto reader = open_corpus(real_file_system(), options);
          std::vector<std::string> one_by_one;
          for (Document document; reader->next(document);) one_by_one.emplace_back(document.text);
          REQUIRE(one_by_one == expected);
        }
    }
  }
}

TEST_CASE("plain text: a file that is one document streams in parts, and can be divided for validation",
          "[corpus]") {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "line " + std::to_string(i) + (i % 7 == 0 ? "\n" : " ");
  write_bytes(folder / "a.txt", text);
  write_bytes(folder / "a.txt.zst", zstd_packed(text));
  for (const char* name : {"a.txt", "a.txt.zst"})
    for (const uint64_t held_out : {0, 1, 50})
      for (const size_t block : {100, 5000, 1 << 20}) {
        CorpusOptions options{
            .files = {folder / name}, .block_bytes = block, .kept = 99, .held_out = held_out};
        options.cut = cut_text;
        CAPTURE(name, held_out, block);
        const Read all = read_from(options, {});
        std::string joined;
        for (const std::string& document : all.documents) joined += document;
        CHECK(joined == text);
        REQUIRE(all.documents.size() == (held_out > 0 ? 2 : 1));
        if (held_out > 0) {
          const size_t target = text.size() * 99 / (99 + held_out);
          CHECK(all.documents[0] == text.substr(0, text.rfind('\n', target - 1) + 1));
        }
        if (block < 1000) CHECK(all.ends.size() > text.size() / block);
        for (size_t i = 0; i < all.ends.size(); i += 1 + all.ends.size() / 9) {
          std::string rest;
          for (const std::string& document : read_from(options, all.ends[i]).documents) rest += document;
          CHECK(rest == text.substr(all.ends[i].offset));
        }
      }
}

TEST_CASE("plain text and JSON lines: records above the limit are refused, or left out, without being held",
          "[corpus]") {
  TemporaryFolder folder;
  const std::string too_long(100'000, 'x');
  write_bytes(folder / "a.txt", "one\n\n" + too_long + "\n\ntwo\n\n" + too_long);
  write_bytes(folder / "a.jsonl",
              "{\"text\":\"one\"}\n{\"text\":\"" + too_long + "\"}\n{\"text\":\"two\"}\n" + too_long + "\n");
  for (const auto& [name, unit] : {std::pair{"a.txt", "document"}, std::pair{"a.jsonl", "line"}})
    for (const size_t block : {16, 1000, 1 << 20}) {
      CorpusOptions options{
          .files = {folder / name}, .separator = "\n\n", .longest_document = 50'000, .block_bytes = block};
      CAPTURE(name, block);
      CHECK_THAT(
          data_error([&] { read_from(options, {}); }),
          Contains(std::string(name) + ", " + unit + " 2: longer than 50.0 kB") && Contains("--skip-bad"));
      options.skip_bad = true;
      const Read read = read_from(options, {});
      CHECK(read.documents == std::vector<std::string>{"one", "two"});
      CHECK(read.left_out == 2);
      for (const CorpusPosition& end : read.ends) {
        const Read rest = read_from(options, end);
        CHECK(rest.documents.size() <= 1 + (end.number < 1));
        CHECK(rest.left_out == (end.number < 2 ? 2 : end.number < 4 ? 1 : 0));
      }
    }
  // A text that cannot be divided.
  write_bytes(folder / "b.txt", too_long);
  CorpusOptions options{.files = {folder / "b.txt", folder / "a.jsonl"},
                        .longest_document = 50'000,
                        .skip_bad = true,
                        .block_bytes = 1000};
  CHECK(read_from(options, {}).documents == std::vector<std::string>{"one", "two"});
  options.cut = [](std::string_view text, size_t) { return text.size(); };
  CHECK(read_from(options, {}).left_out == 3);
  options.skip_bad = false;
  CHECK_THAT(data_error([&] { read_from(options, {}); }),
             Contains("b.txt, document 1: longer than") && Contains("as a whole"));
}
