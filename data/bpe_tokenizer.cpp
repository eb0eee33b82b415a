#include "data/bpe_tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "data/byte_pairs.h"
#include "data/normalize.h"
#include "data/piece_cache.h"
#include "data/split_pieces.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr int kCacheBits = 16;

/// Before a space after a letter, digit or mark of ASCII.
bool can_cut(std::string_view text, size_t at) {
  return text[at] == ' ' && text[at - 1] > ' ' && text[at - 1] < 0x7f;
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeModel model);
  std::string name() const override { return "bpe"; }
  int64_t vocab_size() const override { return int64_t(model_.tokens.size()); }
  int32_t end_of_text() const override { return model_.end_of_text; }
  std::string end_of_text_name() const override { return model_.tokens[size_t(model_.end_of_text)]; }
  std::optional<int32_t> special_id(std::string_view text) const override {
    for (const AddedToken& token : model_.added)
      if (token.content == text) return token.id;
    return std::nullopt;
  }
  bool encodes_in_parts() const override { return in_parts_; }
  size_t first_part(std::string_view text, size_t limit) const override;
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  std::unique_ptr<Encoder> encoder() const override;

 private:
  friend class BpeEncoder;
  /// Those that are found in text; plain: but the special ones.
  struct Finders {
    Finders(const BpeModel& model, bool plain)
        : as_is(added_where(model, false, plain)), normalized(added_where(model, true, plain)) {}
    AddedTokenFinder as_is, normalized;
  };
  static std::vector<AddedToken> added_where(const BpeModel& model, bool normalized, bool plain);

  BpeModel model_;
  BytePairs pairs_;
  Finders all_, plain_;
  std::unordered_map<std::string_view, int32_t>
      whole_;                                 // if whole pieces are looked up: views of model_.tokens
  std::vector<bool> special_;                 // by id
  std::optional<KnownPattern> only_pattern_;  // the one stage, where a scanner does it all
  bool in_parts_ = false;
};

class BpeEncoder final : public Tokenizer::Encoder {
 public:
  BpeEncoder(const BpeTokenizer& tokenizer, int cache_bits)
      : tokenizer_(tokenizer), cache_(cache_bits), splitter_(tokenizer.model_.stages) {}

  void encode(std::string_view text, std::vector<int32_t>& ids) override {
    encode_with(tokenizer_.all_, text, ids);
  }
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) override {
    encode_with(tokenizer_.plain_, text, ids);
  }

 private:
  void encode_with(const BpeTokenizer::Finders& finders, std::string_view text, std::vector<int32_t>& ids) {
    ids.reserve(ids.size() + text.size() / 3);
    finders.as_is.divide(
        text, [&](std::string_view part) { encode_normalized(finders.normalized, part, ids); },
        [&](int32_t id) { ids.push_back(id); });
  }

  void encode_normalized(const AddedTokenFinder& finder, std::string_view text, std::vector<int32_t>& ids) {
    if (tokenizer_.model_.normalizes_c) text = normalize_c(text, normalized_);
    finder.divide(
        text, [&](std::string_view part) { encode_text(part, ids); }, [&](int32_t id) { ids.push_back(id); });
  }

  void encode_text(std::string_view text, std::vector<int32_t>& ids) {
    const auto on_piece = [&](std::string_view piece) { encode_piece(piece, ids); };
    if (tokenizer_.only_pattern_) return scan(*tokenizer_.only_pattern_, text, on_piece);
    splitter_.split(text, on_piece);
  }

  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) {
    if (piece.size() > PieceCache::kLongestPiece) return encode_new(piece, ids);
    const PieceCache::Key key = PieceCache::key_of(piece);
    if (cache_.find(key, ids)) return;
    const size_t before = ids.size();
    encode_new(piece, ids);
    cache_.keep(key, std::span(ids).subspan(before));
  }

  void encode_new(std::string_view piece, std::vector<int32_t>& ids) {
    if (tokenizer_.model_.whole_pieces) {
      if (const auto found = tokenizer_.whole_.find(piece); found != tokenizer_.whole_.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    tokenizer_.pairs_.encode(piece, workspace_, ids);
  }

  const BpeTokenizer& tokenizer_;
  PieceCache cache_;
  PieceSplitter splitter_;
  BytePairs::Workspace workspace_;
  std::string normalized_;
};

std::vector<AddedToken> BpeTokenizer::added_where(const BpeModel& model, bool normalized, bool plain) {
  std::vector<AddedToken> tokens;
  if (!model.finds_added) return tokens;
  for (AddedToken token : model.added) {
    if (token.normalized != normalized || (plain && token.special)) continue;
    std::string buffer;
    if (normalized && model.normalizes_c) token.content = std::string(normalize_c(token.content, buffer));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

BpeTokenizer::BpeTokenizer(BpeModel model)
    : model_(std::move(model)),
      pairs_(model_.byte_ids, model_.merges.size()),
      all_(model_, false),
      plain_(model_, true),
      special_(model_.tokens.size()),
      only_pattern_(scanner_of(model_.stages)) {
  ENSURE(model_.end_of_text >= 0 && size_t(model_.end_of_text) < model_.tokens.size(),
         "end of text {} of {} ids", model_.end_of_text, model_.tokens.size());
  for (const BpeModel::Merge& merge : model_.merges)
    pairs_.add(merge.left, merge.right, merge.rank, merge.id);
  model_.merges = {};
  for (const AddedToken& token : model_.added) special_[size_t(token.id)] = token.special;
  if (model_.whole_pieces) {
    std::vector<bool> is_added(model_.tokens.size());
    for (const AddedToken& token : model_.added) is_added[size_t(token.id)] = true;
    for (size_t id = 0; id < model_.tokens.size(); ++id)
      if (!model_.tokens[id].empty() && !is_added[id]) whole_.emplace(model_.tokens[id], int32_t(id));
  }
  // No piece of the scanners spans a cut; an added token might.
  in_parts_ = only_pattern_.has_value();
  for (const AddedToken& token : model_.added) {
    bool spans = token.rstrip;
    for (size_t i = 1; i < token.content.size(); ++i) spans = spans || can_cut(token.content, i);
    if (model_.finds_added && spans) in_parts_ = false;
  }
}

size_t BpeTokenizer::first_part(std::string_view text, size_t limit) const {
  if (!in_parts_ || text.size() <= limit) return text.size();
  for (size_t i = limit; i > limit / 2; --i)
    if (can_cut(text, i)) return i;
  for (size_t i = limit + 1; i < text.size(); ++i)
    if (can_cut(text, i)) return i;
  return text.size();
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  BpeEncoder(*this, 4).encode(text, ids);
  return ids;
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids)
    if (id >= 0 && size_t(id) < model_.tokens.size() && !special_[size_t(id)])
      text += model_.tokens[size_t(id)];
  return text;
}

std::unique_ptr<Tokenizer::Encoder> BpeTokenizer::encoder() const {
  return std::make_unique<BpeEncoder>(*this, kCacheBits);
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeModel model) {
  return std::make_unique<BpeTokenizer>(std::move(model));
}

std::optional<int32_t> find_end_of_text(const std::vector<AddedToken>& added) {
  for (const std::string_view name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]",
                                      "<｜end▁of▁sentence｜>", "<|end▁of▁sentence|>"})
    for (const AddedToken& token : added)
      if (token.content == name) return token.id;
  return std::nullopt;
}

}  // namespace trainctl::data
