#include "data/clean/dedup.h"

#include "data/clean/clean_corpus.h"
#include "data/clean/near_index.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"

namespace trainctl::data {
namespace {

enum Reason : size_t { kExact, kNear };
constexpr int kNumberBits = 44;
constexpr uint64_t kMostFiles = (uint64_t(1) << (64 - kNumberBits)) - 1;

/// Two XXH3-64 with two seeds.
struct TextHash {
  uint64_t high = 0, low = 0;
  bool operator==(const TextHash&) const = default;
  static TextHash of(std::string_view text) { return {xxh3(text, 1), xxh3(text, 2)}; }
};

struct KeptText {
  TextHash hash;
  uint64_t label = 0;  // 0: a free slot
  bool is_free() const { return label == 0; }
  uint64_t spread() const { return hash.high; }
};

struct TextFacts {
  TextHash hash;
  std::optional<MinHashSignature> signature;
};

/// File and number of a record in one word.
uint64_t label_of(const CleanedRecord& record) {
  return uint64_t(record.file) << kNumberBits | record.number;
}

class Deduplicator {
 public:
  explicit Deduplicator(const DedupOptions& options)
      : options_(options), bytes_each_(dedup_bytes_per_document(options.near, options.threshold)) {
    if (options.near) near_.emplace(options.threshold);
    const int threads = thread_count(options.cleaning.threads);
    const uint64_t own = cleaning_memory(threads), least = own + (uint64_t(16) << 20);
    if (options.memory < least)
      throw Error(ErrorCode::kUsage,
                  fmt::format("--memory {} is too little for {} threads; give {} or more",
                              memory_text(double(options.memory)), threads, memory_text(double(least))));
    most_kept_ = uint64_t(double(options.memory - own) / bytes_each_);
  }

  std::optional<Removal> decide(const TextFacts& facts, const CleanedRecord& record) {
    uint64_t equal = 0;
    exact_.visit(facts.hash.high, [&](const KeptText& kept) {
      if (kept.hash == facts.hash) equal = kept.label;
      return equal != 0;
    });
    if (equal != 0) return Removal{kExact, kept_text(equal)};
    if (near_ && facts.signature)
      if (const auto match = near_->find(*facts.signature))
        return Removal{kNear, kept_text(match->label) + fmt::format(",\"similarity\":{:.3f}", match->similarity)};
    if (kept_ == most_kept_) refuse(record);
    ++kept_;
    exact_.add({facts.hash, label_of(record)});
    if (near_ && facts.signature) near_->add(*facts.signature, label_of(record));
    return std::nullopt;
  }

 private:
  /// "record", for the unit of another file may be another.
  std::string kept_text(uint64_t label) const {
    const uint64_t number = label & ((uint64_t(1) << kNumberBits) - 1);
    return fmt::format(",\"kept\":{{\"file\":{},\"record\":{}}}",
                       json_string(options_.cleaning.corpus.files[label >> kNumberBits]), number);
  }
  [[noreturn]] void refuse(const CleanedRecord& record) const {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} different documents fill --memory {} ({:.0f} bytes each) at {} {} of {}; nothing "
                    "was written: raise --memory, or give fewer files at a time",
                    kept_, memory_text(double(options_.memory)), bytes_each_, record.unit, record.number,
                    options_.cleaning.corpus.files[record.file]));
  }

  const DedupOptions& options_;
  const double bytes_each_;
  uint64_t most_kept_ = 0, kept_ = 0;
  SegmentedTable<KeptText> exact_;
  std::optional<NearIndex> near_;
};

}  // namespace

double dedup_bytes_per_document(bool near, double threshold) {
  return SegmentedTable<KeptText>::kMostBytes + (near ? NearIndex::bytes_per_text(threshold) : 0);
}

CleaningResult dedup(const DedupOptions& options) {
  if (!(options.threshold >= 0.3 && options.threshold <= 1))
    throw Error(ErrorCode::kUsage, fmt::format("--threshold {} is not from 0.3 to 1", options.threshold));
  if (options.shingle_words < 1 || options.shingle_words > 100)
    throw Error(ErrorCode::kUsage,
                fmt::format("--shingle {} is not from 1 to 100 words", options.shingle_words));
  if (options.cleaning.corpus.files.size() > kMostFiles)
    throw Error(ErrorCode::kUsage, fmt::format("{} files are more than {}; join some of them",
                                               options.cleaning.corpus.files.size(), kMostFiles));
  Deduplicator deduplicator(options);
  const auto make_examiner = [&]() -> std::function<TextFacts(std::string_view)> {
    if (!options.near)
      return [](std::string_view text) { return TextFacts{TextHash::of(text), std::nullopt}; };
    return [hasher = std::make_shared<MinHash>(options.shingle_words)](std::string_view text) {
      return TextFacts{TextHash::of(text), hasher->signature(text)};
    };
  };
  std::vector<std::string> reasons{"exact"};
  if (options.near) reasons.emplace_back("near");
  return clean_corpus<TextFacts>(options.cleaning, std::move(reasons), "removing duplicates", make_examiner,
                                 [&](const TextFacts& facts, const CleanedRecord& record) {
                                   return deduplicator.decide(facts, record);
                                 });
}

}  // namespace trainctl::data
