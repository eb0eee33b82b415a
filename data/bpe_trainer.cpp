#include "data/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "data/byte_level.h"
#include "data/known_patterns.h"
#include "data/ordered_work.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace trainctl::data {
namespace {

constexpr int kByteTokens = 256;
constexpr int64_t kFewestIds = kByteTokens + 1, kMostTrainedIds = 1'000'000;
constexpr KnownPattern kPattern = KnownPattern::cl100k;
constexpr const char* kEndOfText = "<|endoftext|>";
constexpr int64_t kFewestOccurrences = 2;

using PieceCounts = std::unordered_map<std::string, int64_t>;

PieceCounts count_pieces(const std::string& text) {
  std::unordered_map<std::string_view, int64_t> found;
  scan<kPattern>(text, [&](std::string_view piece) { ++found[piece]; });
  PieceCounts counts;
  for (const auto& [piece, n] : found) counts.emplace(piece, n);
  return counts;
}

/// All pieces with their counts, in the order of their bytes.
std::map<std::string, int64_t> count_all(const TextStream& next, int threads) {
  OrderedWork<std::string, PieceCounts> work(
      threads, [] { return [](const std::string& text) { return count_pieces(text); }; });
  std::map<std::string, int64_t> all;
  const auto take = [&] {
    for (const auto& [piece, n] : work.take()) all[piece] += n;
  };
  std::string_view text;
  while (next(text)) {
    if (work.is_full()) take();
    work.submit(std::string(text));
  }
  while (!work.is_empty()) take();
  return all;
}

/// The bytes in the order of the characters that stand for them, as in GPT-2: ids 0 to 255.
std::array<int32_t, kByteTokens> byte_order() {
  std::array<int32_t, kByteTokens> bytes, ids;
  std::iota(bytes.begin(), bytes.end(), 0);
  std::sort(bytes.begin(), bytes.end(), [](int32_t a, int32_t b) {
    return character_of_byte(uint8_t(a)) < character_of_byte(uint8_t(b));  // UTF-8 sorts as code points do
  });
  for (int32_t id = 0; id < kByteTokens; ++id) ids[size_t(bytes[size_t(id)])] = id;
  return ids;
}

using Pair = std::pair<int32_t, int32_t>;
struct PairHash {
  size_t operator()(const Pair& p) const {
    return size_t((uint64_t(uint32_t(p.first)) << 32 | uint32_t(p.second)) * 0x9e3779b97f4a7c15);
  }
};

/// Learns the merges of a list of words.
class Trainer {
 public:
  explicit Trainer(const std::map<std::string, int64_t>& pieces) {
    const auto ids = byte_order();
    tokens_.resize(kByteTokens);
    for (int b = 0; b < kByteTokens; ++b) tokens_[size_t(ids[size_t(b)])] = std::string(1, char(b));
    for (const auto& [piece, count] : pieces) {
      Word word{.count = count};
      for (const char b : piece) word.tokens.push_back(ids[uint8_t(b)]);
      words_.push_back(std::move(word));
    }
    for (size_t i = 0; i < kByteTokens; ++i) id_of_.emplace(tokens_[i], int32_t(i));
    for (size_t w = 0; w < words_.size(); ++w) count_word(w, 1, std::nullopt);
    for (const auto& [pair, seen] : pairs_) queue_.push({seen.count, pair});
  }

  /// Until there are `most_tokens` tokens, or no pair occurs often enough.
  void run(size_t most_tokens) {
    while (tokens_.size() < most_tokens && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(best.pair);
      const int64_t now = found == pairs_.end() ? 0 : found->second.count;
      if (now < kFewestOccurrences) continue;
      // Each change of a count to a larger value has been queued; a smaller one is found here.
      if (now != best.count) {
        if (now < best.count) queue_.push({now, best.pair});
        continue;
      }
      merge(best.pair);
    }
  }

  std::string json() const;

 private:
  struct Word {
    std::vector<int32_t> tokens;
    int64_t count = 0;
  };
  struct Seen {
    int64_t count = 0;
    std::vector<uint32_t> words;  // that have or had the pair; some more than once
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  /// `new_token`: only pairs with it can be new to the word.
  void count_word(size_t w, int64_t sign, std::optional<int32_t> new_token) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      Seen& seen = pairs_[{word.tokens[i], word.tokens[i + 1]}];
      seen.count += sign * word.count;
      const bool is_new =
          sign > 0 && (!new_token || word.tokens[i] == *new_token || word.tokens[i + 1] == *new_token);
      if (is_new && (seen.words.empty() || seen.words.back() != w)) seen.words.push_back(uint32_t(w));
    }
  }

  void merge(Pair pair) {
    const std::string joined = tokens_[size_t(pair.first)] + tokens_[size_t(pair.second)];
    const auto [known, is_new] = id_of_.emplace(joined, int32_t(tokens_.size()));
    if (is_new) tokens_.push_back(joined);
    const int32_t id = known->second;
    merges_.push_back(pair);
    std::vector<uint32_t> affected = std::move(pairs_[pair].words);
    std::sort(affected.begin(), affected.end());
    affected.erase(std::unique(affected.begin(), affected.end()), affected.end());
    std::map<Pair, bool> changed;
    for (const uint32_t w : affected) {
      Word& word = words_[w];
      count_word(w, -1, id);
      size_t out = 0;
      for (size_t i = 0; i < word.tokens.size(); ++i, ++out) {
        const bool here = i + 1 < word.tokens.size() && Pair(word.tokens[i], word.tokens[i + 1]) == pair;
        word.tokens[out] = here ? id : word.tokens[i];
        i += here;
      }
      word.tokens.resize(out);
      count_word(w, 1, id);
      for (size_t i = 0; i + 1 < word.tokens.size(); ++i)
        if (word.tokens[i] == id || word.tokens[i + 1] == id)
          changed[{word.tokens[i], word.tokens[i + 1]}] = true;
    }
    pairs_.erase(pair);
    for (const auto& [p, _] : changed)
      if (const auto found = pairs_.find(p); found != pairs_.end()) queue_.push({found->second.count, p});
  }

  std::vector<Word> words_;
  std::vector<std::string> tokens_;  // bytes, by id
  std::unordered_map<std::string, int32_t> id_of_;
  std::vector<Pair> merges_;
  std::unordered_map<Pair, Seen, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
};

std::string Trainer::json() const {
  OrderedJson vocab = OrderedJson::object(), merges = OrderedJson::array();
  OrderedJson::Object& entries = vocab.items();  // appended to, since an insertion looks through all keys
  for (size_t id = 0; id < tokens_.size(); ++id) entries.push_back({characters_of_bytes(tokens_[id]), id});
  for (const auto& [left, right] : merges_)
    merges.push_back(
        {characters_of_bytes(tokens_[size_t(left)]), characters_of_bytes(tokens_[size_t(right)])});
  const auto byte_level = [](bool trims) {
    return OrderedJson{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", trims}, {"use_regex", false}};
  };
  const OrderedJson split{{"type", "Split"},
                           {"pattern", {{"Regex", std::string(regex_of(kPattern))}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const OrderedJson end{{"id", tokens_.size()}, {"content", kEndOfText}, {"single_word", false},
                         {"lstrip", false},      {"rstrip", false},       {"normalized", false},
                         {"special", true}};
  OrderedJson file{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  file["added_tokens"] = OrderedJson::array({end});
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", OrderedJson::array({split, byte_level(true)})}};
  file["post_processor"] = nullptr;
  file["decoder"] = byte_level(true);
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false}};
  file["model"]["vocab"] = std::move(vocab);
  file["model"]["merges"] = std::move(merges);
  return dump_json(file, 1) + "\n";
}

}  // namespace

std::string train_bpe(const TextStream& next, int64_t vocab_size, int threads) {
  if (vocab_size < kFewestIds || vocab_size > kMostTrainedIds)
    throw Error(ErrorCode::kData,
                fmt::format("a vocabulary of {} cannot be trained; choose {} to {}, or use --tokenizer bytes",
                            vocab_size, kFewestIds, kMostTrainedIds));
  const auto pieces = count_all(next, threads);
  if (pieces.empty())
    throw Error(
        ErrorCode::kData,
        "the input holds no text in UTF-8 to train a tokenizer on; convert it if it is Latin-1 or the like");
  Trainer trainer(pieces);
  trainer.run(size_t(vocab_size) - 1);
  return trainer.json();
}

}  // namespace trainctl::data
