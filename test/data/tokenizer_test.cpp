// Goal: text survives a tokenizer byte for byte, whatever it is made of; training learns from the text; what is no model is refused.
// Method: a model trained on a small corpus, then hand-picked awkward texts and random bytes (seed below) there and back.
#include <random>

#include "data/tokenizer.h"
#include "test/data/token_fixtures.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::data;
using namespace trainctl::data::test;
using Catch::Matchers::Contains;

namespace {

std::string tokenizer_corpus() {
  std::mt19937 random(1);
  const std::vector<std::string> words{"the", "model", "learns", "from", "tokens", "Zürich", "naïve", "return", "value", "{", "}",
                                       "42", "and", "because", "训练", "数据"};
  std::string text;
  for (int line = 0; line < 3000; ++line) {
    text += std::string(4 * (random() % 3), ' ');
    for (int i = 0; i < 8; ++i) text += words[random() % words.size()] + " ";
    text += line % 7 ? "\n" : "\n\n";
  }
  return text;
}

const std::string& trained_model() {
  static const std::string model = [] {
    const std::string text = tokenizer_corpus();
    bool given = false;
    return train_sentencepiece([&](std::string_view& next) { return given ? false : (next = text, given = true); }, 400);
  }();
  return model;
}

const std::vector<std::string>& awkward() {
  static const std::vector<std::string> texts{
      "", " ", "  ", "\n", "\n\n\n", "\t\tx\t", "a\r\nb\r\n", " leading", "trailing ", "two  spaces   three", "\xe2\x96\x81",
      "a\xe2\x96\x81 b", "<s></s><unk><0x41>", std::string("nul\0here", 8), "\xff\xfe broken \xc3", "\xed\xa0\x80 surrogate",
      "emoji \xf0\x9f\x98\x80!", "e\xcc\x81 combining", "\xef\xac\x81 ligature", "\xef\xbb\xbf bom", "    indented\n        more\n",
      "\xe2\x81\x87 unk surface", "\xe2\x80\x8bzero width", "\xc2\xa0nbsp", "\xe3\x80\x80wide"};
  return texts;
}

}  // namespace

TEST_CASE("bytes: every byte there and back, 257 ids", "[tokenizer]") {
  const auto tokenizer = open_tokenizer(TokenizerChoice::bytes());
  CHECK(tokenizer->vocab_size() == 257);
  CHECK(tokenizer->end_of_text() == 256);
  std::string all;
  for (int i = 0; i < 256; ++i) all += char(i);
  CHECK(tokenizer->encode(all).back() == 255);
  CHECK(tokenizer->decode(tokenizer->encode(all)) == all);
  CHECK(tokenizer->decode(std::vector<int32_t>{72, 256, 105}) == "Hi");
}

TEST_CASE("a trained SentencePiece model loses nothing", "[tokenizer]") {
  const auto tokenizer = open_sentencepiece(trained_model(), "t");
  CHECK(tokenizer->encodes_in_parts());
  CHECK(tokenizer->vocab_size() <= 400);
  CHECK(tokenizer->end_of_text() == 1);
  for (const std::string& text : awkward()) {
    CAPTURE(text);
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
  const uint64_t seed = trainctl::test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += random() % 3 ? awkward()[random() % awkward().size()] : std::string(1, char(random()));
    const auto ids = tokenizer->encode(text);
    REQUIRE(tokenizer->decode(ids) == text);
    for (const int32_t id : ids) REQUIRE((id >= 2 && id < tokenizer->vocab_size()));
  }
  const std::string text = tokenizer_corpus();
  CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  CHECK(tokenizer->encode(text).size() * 2 < text.size());
}

TEST_CASE("encoding in parts gives the ids of the whole", "[tokenizer]") {
  const auto tokenizer = open_sentencepiece(trained_model(), "t");
  const std::string text = tokenizer_corpus().substr(0, 20000);
  const auto whole = tokenizer->encode(text);
  for (const size_t limit : {8, 9, 50, 333, 4096}) {
    std::vector<int32_t> ids;
    for (std::string_view rest = text; !rest.empty();) {
      // Cuts inside a word are only lossless; with at least 50 bytes there is a space or a newline.
      const size_t n = cut_text(rest, limit);
      const auto part = tokenizer->encode(rest.substr(0, n));
      ids.insert(ids.end(), part.begin(), part.end());
      rest.remove_prefix(n);
    }
    CAPTURE(limit);
    if (limit >= 50) CHECK(ids == whole);
    CHECK(tokenizer->decode(ids) == text);
  }
}

TEST_CASE("training is deterministic and reports what it cannot do", "[tokenizer]") {
  const std::string text = tokenizer_corpus();
  bool given = false;
  const TextStream once = [&](std::string_view& next) { return given ? false : (next = text, given = true); };
  CHECK(train_sentencepiece(once, 400) == trained_model());
  CHECK_THAT(data_error([&] { train_sentencepiece(once, 100); }), Contains("vocabulary of 100 cannot be trained"));
  CHECK_THAT(data_error([&] { train_sentencepiece([](std::string_view&) { return false; }, 400); }), Contains("no text"));
  given = false;
  const auto large = open_sentencepiece(train_sentencepiece(once, 50000), "t");
  CHECK(large->vocab_size() < 50000);
}

TEST_CASE("what is no tokenizer is refused", "[tokenizer]") {
  TemporaryFolder folder;
  const auto refused = [&](const char* name) {
    return data_error([&] { open_tokenizer(TokenizerChoice::file(folder / name)); });
  };
  CHECK_THAT(refused("none.model"), Contains("there is no tokenizer"));
  write_bytes(folder / "bad.model", "not a model");
  CHECK_THAT(refused("bad.model"), Contains("is no SentencePiece model"));
  write_bytes(folder / "empty.model", "");
  CHECK_THAT(refused("empty.model"), Contains("is no SentencePiece model"));
  write_bytes(folder / "cut.model", trained_model().substr(0, trained_model().size() / 2));
  CHECK_THAT(refused("cut.model"), Contains("cut.model"));
}
