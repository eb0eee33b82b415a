// Answers: the tokens of a record of fine-tuning data, and which of them have a loss. A record is a line of
// JSON with a conversation (`messages`, or `conversations`), or a prompt and its completion.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenize/chat_template.h"
#include "data/tokenizer.h"

namespace trainctl::data {

/// Whether a line of JSON is such a record, and has no string under `text_key`.
bool has_answers(std::string_view line, const std::string& text_key);

/// Thread-safe. The tokenizer outlives it.
class AnswerEncoder {
 public:
  /// `form`: of conversations; nullopt: each is refused with `why`. Error(kData): the tokenizer lacks a token
  /// of the template, or puts a space before texts.
  AnswerEncoder(const Tokenizer& tokenizer, std::optional<ChatTemplate> form, std::string why);

  /// Appends the tokens of the record and a weight for each: that of its message (`weight`, 0 to 255; 1
  /// unless given) for an answer and the token that ends it, 0 for all else. Contents never make a special
  /// token, whatever they look like. Returns the bytes of text. Error(kData), without file and line: the
  /// record is none.
  size_t encode(std::string_view line, Tokenizer::Encoder& encoder, std::vector<int32_t>& ids,
                std::vector<uint8_t>& weights) const;

 private:
  const Tokenizer& tokenizer_;
  const std::optional<ChatTemplate> form_;
  const std::string why_;
  struct Special {
    std::string text;
    int32_t id;
  };
  std::vector<Special> specials_;
};

}  // namespace trainctl::data
