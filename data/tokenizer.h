// Tokenizer converts text to token ids and back.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer_choice.h"
#include "runtime/base/file_system.h"

namespace trainctl::data {

/// Thread-safe after construction.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;  ///< "bytes", "sentencepiece", "bpe"
  virtual int64_t vocab_size() const = 0;
  /// Whether a text is encoded as if a space stood before it (SentencePiece's dummy prefix).
  virtual bool adds_space() const { return false; }
  virtual int32_t end_of_text() const = 0;         ///< id that ends every document
  virtual std::string end_of_text_name() const = 0;  ///< as files of tokenizers write it
  /// The id of the token that stands for this text alone: `<|im_end|>`. nullopt: there is none.
  virtual std::optional<int32_t> special_id(std::string_view text) const;
  /// Whether a long text can be encoded in parts: the parts that first_part cuts off.
  virtual bool encodes_in_parts() const = 0;
  /// The length of a part of `text`, from its start, with encode(text) == encode(part) + encode(rest):
  /// about `limit` (>= 8) bytes, and the whole text where it cannot be cut.
  virtual size_t first_part(std::string_view text, size_t limit) const;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  /// Encodes one text after the other, with memory of its own: for one thread. Outlived by the tokenizer.
  class Encoder {
   public:
    virtual ~Encoder() = default;
    /// Appends encode(text).
    virtual void encode(std::string_view text, std::vector<int32_t>& ids) = 0;
    /// The same, but that nothing in the text becomes a special token, whatever it looks like.
    virtual void encode_plain(std::string_view text, std::vector<int32_t>& ids) { encode(text, ids); }
  };
  virtual std::unique_ptr<Encoder> encoder() const;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

/// bytes: 256 bytes + end of text = 257 ids. A file: a Hugging Face tokenizer.json
/// (data/tokenizer_json.cpp), a tiktoken file (data/tiktoken.cpp) or a SentencePiece model, by its content.
/// Error(kData) if it cannot be used.
std::unique_ptr<Tokenizer> open_tokenizer(const TokenizerChoice& choice);
std::unique_ptr<Tokenizer> open_tokenizer(FileSystem& fs, const TokenizerChoice& choice);
/// A tokenizer from the bytes of its file. `name`: for messages, and the name of a tiktoken file says which
/// encoding it is.
std::unique_ptr<Tokenizer> open_tokenizer_file(const std::string& content, const std::string& name);
/// A tokenizer from the bytes of a SentencePiece .model file. `name`: for messages.
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& model, const std::string& name);

/// The length of a first part of `text` of at most `limit` (>= 8) bytes. If the whole text fits, it is the
/// whole text. Otherwise the part ends after the last newline; if there is none, before the last space that
/// follows another character; if there is none, before a UTF-8 character.
size_t cut_text(std::string_view text, size_t limit);

/// Sets `text` to the next piece of training text; false at the end. The view is valid until the next call.
using TextStream = std::function<bool(std::string_view& text)>;
/// Trains a SentencePiece BPE model with `vocab_size` ids on the texts and returns the bytes of the .model
/// file. The model is lossless: it has no normalisation, keeps newlines and runs of spaces, and encodes
/// unknown text as bytes (ids 3..258). Id 0 is unknown (never produced), 1 end of text, 2 newline. With
/// little text the model may have fewer ids. Error(kData): the vocabulary is too small, or there is no text.
std::string train_sentencepiece(const TextStream& next, int64_t vocab_size);

}  // namespace trainctl::data
