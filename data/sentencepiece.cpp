// SentencePiece models. Models of train_sentencepiece restore every byte; the ids of other models are those
// that the library makes of the whole text.
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
/// be encoded as bytes. `with_mark`: a U+2581 is one of those.
std::pair<size_t, size_t> plain_then_bytes(std::string_view text, bool with_mark) {
  size_t plain = 0;
  while (plain < text.size()) {
    const size_t n = character_length(text.substr(plain));
    if (n == 0 || text[plain] == '\0') return {plain, 1};
    if (with_mark && n == 3 && text.substr(plain, 3) == kSpaceMark) return {plain, 3};
    plain += n;
  }
  return {plain, 0};
}

/// The bytes of a character, as a number that no other has. `text` is UTF-8 and not empty; a U+2581 counts as
/// the space that it stands for.
uint32_t character_of(std::string_view text, size_t* length) {
  *length = std::max<size_t>(1, character_length(text));
  if (text.substr(0, *length) == kSpaceMark) return ' ';
  uint32_t bytes = 0;
  for (const char c : text.substr(0, *length)) bytes = bytes << 8 | uint8_t(c);
  return bytes;
}

/// Which two characters stand next to each other in some piece. Between two others a text can be cut: no
/// piece spans the cut, so that the merges on either side are those of the whole text. A pair may wrongly
/// count as one of a piece, which costs a cut.
class PairsOfPieces {
 public:
  void add(std::string_view piece) {
    for (size_t at = 0, n = 0; at < piece.size();) {
      const uint32_t first = character_of(piece.substr(at), &n);
      at += n;
      if (at < piece.size()) seen_[place(first, character_of(piece.substr(at), &n))] = true;
    }
  }
  /// The length of a first part of about `limit` bytes; all of `text` if it cannot be cut.
  size_t first_part(std::string_view text, size_t limit) const {
    if (text.size() <= limit) return text.size();
    size_t best = 0, n = 0;
    uint32_t before = character_of(text, &n);
    for (size_t at = n; at < text.size() && (at <= limit || best == 0); at += n) {
      const uint32_t here = character_of(text.substr(at), &n);
      if (!seen_[place(before, here)]) best = at;
      before = here;
    }
    return best > 0 ? best : text.size();
  }

 private:
  static constexpr size_t kPlaces = size_t(1) << 22;
  static size_t place(uint32_t first, uint32_t second) {
    return size_t((first * 0x9E3779B97F4A7C15ull ^ second * 0xC2B2AE3D27D4EB4Full) >> 20) % kPlaces;
  }
  std::vector<bool> seen_ = std::vector<bool>(kPlaces);
};

/// A number of a protobuf message in base 128; moves `text` behind it.
uint64_t take_number(std::string_view& text) {
  uint64_t value = 0;
  for (int shift = 0; !text.empty() && shift < 64; shift += 7) {
    const auto byte = uint8_t(text.front());
    text.remove_prefix(1);
    value |= uint64_t(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

/// Whether the pieces are made by merges (TrainerSpec.model_type, field 3 of field 2 of
/// sentencepiece_model.proto, is BPE): then a part of a text is encoded as it would be within the whole. The
/// best path of a unigram model depends on sums over the whole text.
bool is_made_by_merges(std::string_view message, bool in_trainer_spec = false) {
  constexpr uint64_t kTrainerSpec = 2, kModelType = 3, kBpe = 2;
  while (!message.empty()) {
    const uint64_t tag = take_number(message), field = tag >> 3;
    size_t length = 0;
    switch (tag & 7) {
      case 0: {
        const uint64_t value = take_number(message);
        if (in_trainer_spec && field == kModelType) return value == kBpe;
        continue;
      }
      case 1: length = 8; break;
      case 2: length = size_t(take_number(message)); break;
      case 5: length = 4; break;
      default: return false;
    }
    length = std::min(length, message.size());
    if (!in_trainer_spec && field == kTrainerSpec) return is_made_by_merges(message.substr(0, length), true);
    message.remove_prefix(length);
  }
  return false;
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
    is_own_ = lossless_ && processor_.unk_id() == 0 && processor_.eos_id() == 1 && processor_.bos_id() < 0 &&
              processor_.pad_id() < 0;
    in_parts_ = lossless_ && is_made_by_merges(model);
    for (int id = 0; in_parts_ && id < processor_.GetPieceSize(); ++id)
      if (!processor_.IsByte(id) && !processor_.IsControl(id)) pairs_.add(processor_.IdToPiece(id));
  }

  std::string name() const override { return "sentencepiece"; }
  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  int32_t end_of_text() const override { return processor_.eos_id(); }
  std::string end_of_text_name() const override { return processor_.IdToPiece(processor_.eos_id()); }
  std::optional<int32_t> special_id(std::string_view text) const override {
    const int id = processor_.PieceToId(std::string(text));
    if (processor_.IsUnknown(id)) return std::nullopt;
    return id;
  }
  bool encodes_in_parts() const override { return in_parts_; }
  size_t first_part(std::string_view text, size_t limit) const override {
    return in_parts_ ? pairs_.first_part(text, limit) : text.size();
  }
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
      const auto [plain, as_bytes] = plain_then_bytes(text, is_own_);
      for (std::string_view rest = text.substr(0, plain); !rest.empty();) {
        const size_t n = first_part(rest, kEncodePart);
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
  bool lossless_ = false;           // it changes nothing of a text, but for what is encoded as bytes
  bool is_own_ = false;             // of train_sentencepiece: decode(encode(text)) == text for every text
  bool in_parts_ = false;
  PairsOfPieces pairs_;
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
      if (plain_then_bytes(line, true).second != 0 || line.empty())
        continue;  // what is encoded as bytes needs no pieces
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
  if (lines.done())
    throw Error(
        ErrorCode::kData,
        "the input holds no text in UTF-8 to train a tokenizer on; convert it if it is Latin-1 or the like");
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
