#include "data/tokenizer.h"

#include <algorithm>

#include "data/tiktoken.h"
#include "data/tokenizer_json.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/text.h"

namespace trainctl::data {
namespace {

/// Ids 0..255 are the bytes, 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int64_t vocab_size() const override { return 257; }
  int32_t end_of_text() const override { return 256; }
  std::string end_of_text_name() const override { return "<|endoftext|>"; }
  bool encodes_in_parts() const override { return true; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    std::transform(text.begin(), text.end(), ids.begin(), [](char c) { return int32_t(uint8_t(c)); });
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids)
      if (id >= 0 && id < 256) text += char(id);
    return text;
  }
};

/// Of tokenizers that need no memory between texts.
class PlainEncoder final : public Tokenizer::Encoder {
 public:
  explicit PlainEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void encode(std::string_view text, std::vector<int32_t>& ids) override {
    const std::vector<int32_t> more = tokenizer_.encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }

 private:
  const Tokenizer& tokenizer_;
};

}  // namespace

size_t Tokenizer::first_part(std::string_view text, size_t limit) const {
  return encodes_in_parts() ? cut_text(text, limit) : text.size();
}

std::optional<int32_t> Tokenizer::special_id(std::string_view text) const {
  return text == end_of_text_name() ? std::optional(end_of_text()) : std::nullopt;
}

std::unique_ptr<Tokenizer::Encoder> Tokenizer::encoder() const {
  return std::make_unique<PlainEncoder>(*this);
}

size_t cut_text(std::string_view text, size_t limit) {
  ENSURE(limit >= 8, "limit {}", limit);
  if (text.size() <= limit) return text.size();
  if (const size_t newline = text.rfind('\n', limit - 1); newline != text.npos) return newline + 1;
  for (size_t i = limit; i > 0; --i)
    if (text[i] == ' ' && text[i - 1] != ' ') return i;
  size_t cut = limit;
  while (cut > limit - 4 && (uint8_t(text[cut]) & 0xc0) == 0x80) --cut;
  return cut;
}

std::unique_ptr<Tokenizer> open_tokenizer(const TokenizerChoice& choice) {
  return open_tokenizer(real_file_system(), choice);
}

std::unique_ptr<Tokenizer> open_tokenizer(FileSystem& fs, const TokenizerChoice& choice) {
  if (choice.is_bytes()) return std::make_unique<ByteTokenizer>();
  const std::string& path = choice.text();
  if (!fs.exists(path) || fs.is_directory(path))
    throw Error(
        ErrorCode::kData,
        fmt::format(
            "there is no tokenizer {}; give \"bytes\" or the path of a tokenizer.json, a tiktoken file "
            "or a SentencePiece .model file",
            path));
  return open_tokenizer_file(fs.read_text(path), path);
}

std::unique_ptr<Tokenizer> open_tokenizer_file(const std::string& content, const std::string& name) {
  if (const std::string what = stand_in(content); !what.empty())
    throw Error(ErrorCode::kData, fmt::format("{} is {}", name, what));
  if (is_tokenizer_json(content)) return open_tokenizer_json(content, name);
  if (is_tiktoken(content)) return open_tiktoken(content, name);
  return open_sentencepiece(content, name);
}

}  // namespace trainctl::data
