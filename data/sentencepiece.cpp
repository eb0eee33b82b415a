// SentencePiece models. Models of train_sentencepiece restore every byte; other models behave as the
// library does.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>
#include <thread>

#include "data/tokenizer.h"
#include "data/utf8.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

// The library writes spaces as U+2581 and would read a U+2581 of the text back as a space.
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";
// The library's trainer ignores longer lines.
constexpr size_t kLongestTrainingLine = 4000;
// The library merges over a whole text at once, in memory many times its size.
constexpr size_t kEncodePart = 1 << 11;

/// Length of the longest start of `text` that the library does not change, and then of the part that must
/// be encoded as bytes.
std::pair<size_t, size_t> plain_then_bytes(std::string_view text) {
  size_t plain = 0;
  while (plain < text.size()) {
    const size_t n = character_length(text.substr(plain));
    if (n == 0 || text[plain] == '\0') return {plain, 1};
    if (n == 3 && text.substr(plain, 3) == kSpaceMark) return {plain, 3};
    plain += n;
  }
  return {plain, 0};
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& model, const std::string& name) {
    if (const auto status = processor_.LoadFromSerializedProto(model); model.empty() || !status.ok())
      throw Error(ErrorCode::kData, fmt::format("{} is no SentencePiece model", name));
    if (processor_.eos_id() < 0)
      throw Error(ErrorCode::kData, fmt::format("the SentencePiece model {} has no end-of-text piece (</s>); train one with it", name));
    bytes_.fill(-1);
    for (int id = 0; id < processor_.GetPieceSize(); ++id)
      if (processor_.IsByte(id)) bytes_.at(size_t(std::stoi(processor_.IdToPiece(id).substr(3, 2), nullptr, 16))) = id;
    lossless_ = *std::min_element(bytes_.begin(), bytes_.end()) >= 0;
    if (lossless_) {
      const std::string probe = "  two  spaces \n\n\t\xef\xac\x81 end ";  // U+FB01 would be normalised to "fi"
      lossless_ = decode(encode(probe)) == probe;
    }
    in_parts_ = lossless_ && encode("a\nb").size() > encode("a\n").size() && processor_.PieceToId("\n") > 0 &&
                !processor_.IsUnknown(processor_.PieceToId("\n"));
  }

  std::string name() const override { return "sentencepiece"; }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t end_of_text() const override { return processor_.eos_id(); }
  std::string end_of_text_name() const override { return processor_.IdToPiece(processor_.eos_id()); }
  bool encodes_in_parts() const override { return in_parts_; }
  bool adds_space() const override {
    const std::vector<int32_t> ids = encode("a");
    return !ids.empty() && processor_.IdToPiece(ids[0]).starts_with(kSpaceMark);
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    if (!lossless_) {
      encode_plain(text, ids);
      return ids;
    }
    while (!text.empty()) {
      const auto [plain, as_bytes] = plain_then_bytes(text);
      for (std::string_view rest = text.substr(0, plain); !rest.empty();) {
        const size_t n = in_parts_ ? cut_text(rest, kEncodePart) : rest.size();
        encode_plain(rest.substr(0, n), ids);
        rest.remove_prefix(n);
      }
      for (const char c : text.substr(plain, as_bytes)) ids.push_back(bytes_[uint8_t(c)]);
      text.remove_prefix(plain + as_bytes);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::vector<int> known;
    for (const int32_t id : ids)
      if (id >= 0 && id < processor_.GetPieceSize() && !processor_.IsControl(id)) known.push_back(id);
    std::string text;
    if (!lossless_) {
      const auto status = processor_.Decode(known, &text);
      ENSURE(status.ok(), "{}", status.ToString());
      return text;
    }
    for (const int id : known) {
      const std::string& piece = processor_.IdToPiece(id);
      if (processor_.IsByte(id)) {
        text += char(std::stoi(piece.substr(3, 2), nullptr, 16));
        continue;
      }
      for (size_t i = 0; i < piece.size();) {
        const bool space = piece.compare(i, kSpaceMark.size(), kSpaceMark) == 0;
        text += space ? ' ' : piece[i];
        i += space ? kSpaceMark.size() : 1;
      }
    }
    return text;
  }

 private:
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
    std::vector<int> part;
    const auto status = processor_.Encode({text.data(), text.size()}, &part);
    ENSURE(status.ok(), "{}", status.ToString());
    ids.insert(ids.end(), part.begin(), part.end());
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::array<int32_t, 256> bytes_;  // id of each byte, -1 without
  bool lossless_ = false;           // decode(encode(text)) == text for every text
  bool in_parts_ = false;
};

/// The lines of a stream of texts, for the library's trainer.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const TextStream& next) : next_(next) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }
  void Next() override {
    while (true) {
      while (text_.empty())
        if (!next_(text_)) {
          done_ = true;
          return;
        }
      std::string_view line = text_.substr(0, text_.find('\n'));
      const size_t n = cut_text(line, kLongestTrainingLine);
      const bool newline_follows = n == line.size() && n < text_.size();
      line = line.substr(0, n);
      text_.remove_prefix(n + newline_follows);
      if (plain_then_bytes(line).second != 0 || line.empty()) continue;  // what is encoded as bytes needs no pieces
      line_ = line;
      return;
    }
  }

 private:
  const TextStream& next_;
  std::string_view text_;
  std::string line_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& model, const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(model, name);
}

std::string train_sentencepiece(const TextStream& next, int64_t vocab_size) {
  constexpr int64_t kFewest = 320;  // 256 bytes, three special ids, and room for letters
  if (vocab_size < kFewest || vocab_size > 1'000'000)
    throw Error(ErrorCode::kData, fmt::format("a vocabulary of {} cannot be trained; choose {} to 1000000, or use --tokenizer bytes",
                                              vocab_size, kFewest));
  Lines lines(next);
  if (lines.done()) throw Error(ErrorCode::kData, "the input holds no text to train a tokenizer on");
  const int threads = int(std::max(1u, std::min(16u, std::thread::hardware_concurrency())));
  const std::unordered_map<std::string, std::string> arguments{
      {"model_type", "bpe"}, {"vocab_size", std::to_string(vocab_size)}, {"hard_vocab_limit", "false"},
      {"byte_fallback", "true"}, {"character_coverage", "0.9995"},
      {"normalization_rule_name", "identity"}, {"add_dummy_prefix", "false"}, {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"}, {"split_digits", "true"}, {"user_defined_symbols", "\n"},
      {"unk_id", "0"}, {"eos_id", "1"}, {"bos_id", "-1"}, {"pad_id", "-1"},
      {"max_sentence_length", std::to_string(kLongestTrainingLine + 8)},
      {"num_threads", std::to_string(threads)}, {"minloglevel", "2"}};
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &lines, &model);
  if (!status.ok())
    throw Error(ErrorCode::kData, fmt::format("SentencePiece could not train a vocabulary of {}: {}", vocab_size, status.ToString()));
  return model;
}

}  // namespace trainctl::data
