// Text to token ids and back.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::data {

/// Thread-safe after construction.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;            ///< "bytes", "sentencepiece"
  virtual int64_t vocab_size() const = 0;
  virtual int32_t end_of_text() const = 0;         ///< appended to every document
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

/// "bytes" (256 bytes + end of text = 257 ids) or the path of a SentencePiece .model file. Error(kData) if unusable.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& spec);

}  // namespace trainctl::data
