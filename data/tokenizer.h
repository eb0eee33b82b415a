// Text to token ids and back.
#pragma once
#include <cstdint>
#include <functional>
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
  /// encode(a + b) == encode(a) + encode(b) wherever cut_text cuts; so a long text can be encoded in parts.
  virtual bool encodes_in_parts() const = 0;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

/// "bytes" (256 bytes + end of text = 257 ids) or the path of a SentencePiece .model file. Error(kData) if unusable.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& spec);
/// The same from the bytes of a SentencePiece model; `name` is for messages.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& model, const std::string& name);

/// Length of a first part of `text`, at most `limit` (>= 8) bytes: up to and with the last newline, else before the last
/// space after another character, else before a UTF-8 character. All of it if it fits.
size_t cut_text(std::string_view text, size_t limit);

/// The next piece of text to learn from; false at the end. The view lives until the next call.
using TextStream = std::function<bool(std::string_view& text)>;
/// Trains a SentencePiece BPE model of `vocab_size` ids on the texts and returns the bytes of the .model file. Nothing is
/// lost by it: no normalisation, newlines and runs of spaces kept, what it has no piece for becomes bytes (ids 3..258).
/// Id 0 is unknown (never produced), 1 end of text, 2 newline. Little text may give fewer ids than asked for.
/// Error(kData): too small a vocabulary, no text.
std::string train_sentencepiece(const TextStream& next, int64_t vocab_size);

}  // namespace trainctl::data
