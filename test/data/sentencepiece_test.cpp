// Goal: the ids of a SentencePiece model that others made are those of the library, however long the text is
// and
//       wherever its pieces begin and end.
// Method: models of the library's trainer that lose nothing, of kinds that train_sentencepiece does not make,
//         on texts of many times the length that is encoded at once; the library on the whole text.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "data/tokenizer.h"
#include "test/support/seed.h"

using namespace trainctl::data;

namespace {

/// Words, line ends of several kinds, indented lines, and long lines without a space.
std::string text_of(uint64_t seed, size_t bytes) {
  std::mt19937_64 random(seed);
  const char* const parts[] = {"the ",
                               "cat",
                               " sat",
                               "on\n",
                               "\n\n",
                               "  return",
                               ";\n",
                               "}\n\n",
                               "na\xc3\xafve ",
                               "\t\t",
                               "-----",
                               " \n",
                               "\xe6\x97\xa5\xe6\x9c\xac",
                               "\r\n",
                               "x = 1 ",
                               "===="};
  std::string text;
  while (text.size() < bytes) {
    const char* const part = parts[random() % std::size(parts)];
    for (uint64_t n = random() % 7 == 0 ? 200 : 1; n > 0; --n) text += part;
  }
  return text;
}

class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::string& text) {
    for (size_t at = 0; at < text.size(); at += 150) lines_.push_back(text.substr(at, 150));
  }
  bool done() const override { return at_ >= lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> lines_;
  size_t at_ = 0;
};

std::string model_with(const std::unordered_map<std::string, std::string>& more) {
  std::unordered_map<std::string, std::string> arguments{{"model_type", "bpe"},
                                                         {"vocab_size", "500"},
                                                         {"hard_vocab_limit", "false"},
                                                         {"byte_fallback", "true"},
                                                         {"normalization_rule_name", "identity"},
                                                         {"add_dummy_prefix", "false"},
                                                         {"remove_extra_whitespaces", "false"},
                                                         {"allow_whitespace_only_pieces", "true"},
                                                         {"pad_id", "0"},
                                                         {"eos_id", "1"},
                                                         {"bos_id", "2"},
                                                         {"unk_id", "3"},
                                                         {"num_threads", "1"},
                                                         {"minloglevel", "2"}};
  for (const auto& [key, value] : more) arguments[key] = value;
  Lines lines(text_of(1, 20000));
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &lines, &model);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return model;
}

}  // namespace

TEST_CASE("models that others made encode a long text as the library does", "[tokenizer]") {
  const std::pair<const char*, std::unordered_map<std::string, std::string>> kinds[] = {
      {"line ends", {{"user_defined_symbols", "\n,\n\n,\n\n\n,;\n,}\n\n"}}},
      {"words", {{"split_by_whitespace", "false"}, {"user_defined_symbols", "\n"}}},
      {"suffixes", {{"treat_whitespace_as_suffix", "true"}, {"user_defined_symbols", "\n"}}},
      {"one space", {{"user_defined_symbols", "\n,on\nthe"}}},
      {"unigram", {{"model_type", "unigram"}, {"user_defined_symbols", "\n"}, {"vocab_size", "400"}}},
      {"prefix", {{"add_dummy_prefix", "true"}, {"user_defined_symbols", "\n"}}},
  };
  const uint64_t seed = trainctl::test::test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  for (const auto& [name, more] : kinds) {
    CAPTURE(name);
    const std::string model = model_with(more);
    sentencepiece::SentencePieceProcessor library;
    REQUIRE(library.LoadFromSerializedProto(model).ok());
    const auto tokenizer = open_sentencepiece(model, name);
    for (const size_t bytes : {10, 3000, 30000}) {
      const std::string text = text_of(seed + bytes, bytes);
      std::vector<int> whole;
      REQUIRE(library.Encode(text, &whole).ok());
      CHECK(tokenizer->encode(text) == std::vector<int32_t>(whole.begin(), whole.end()));
      if (!tokenizer->encodes_in_parts()) continue;
      std::vector<int32_t> joined;
      for (std::string_view rest = text; !rest.empty();) {
        const std::string_view part = rest.substr(0, tokenizer->first_part(rest, 100));
        const std::vector<int32_t> ids = tokenizer->encode(part);
        joined.insert(joined.end(), ids.begin(), ids.end());
        rest.remove_prefix(part.size());
      }
      CHECK(joined == std::vector<int32_t>(whole.begin(), whole.end()));
    }
    // What the library takes for a space is one in its models.
    std::vector<int> marked;
    REQUIRE(library.Encode("a\xe2\x96\x81z", &marked).ok());
    CHECK(tokenizer->encode("a\xe2\x96\x81z") == std::vector<int32_t>(marked.begin(), marked.end()));
  }
}
