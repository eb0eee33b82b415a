// NearIndex: finds the most similar of the texts that were added, without comparing with all of them.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/clean/min_hash.h"
#include "data/clean/segmented_table.h"

namespace trainctl::data {

/// How signatures are cut for locality-sensitive hashing: texts are compared if all `rows` bytes of one of
/// the `bands` are equal.
struct Bands {
  int bands = 0, rows = 0;
  /// The probability that two texts of this similarity are compared.
  double probability(double similarity) const;
};
/// As many rows as leave a probability of 0.98 at `threshold`: more rows compare fewer texts in vain.
Bands bands_for(double threshold);

/// One thread at a time. Results depend on the order of the calls alone.
class NearIndex {
 public:
  /// 0 < threshold <= 1.
  explicit NearIndex(double threshold);

  struct Match {
    uint64_t label = 0;
    double similarity = 0;  ///< estimated, >= threshold
  };
  /// The most similar added text, of equal ones the first. A band with more than 32 texts of equal bytes
  /// compares with the first 32 alone, so that boilerplate costs no more than other text.
  std::optional<Match> find(const MinHashSignature& signature);
  void add(const MinHashSignature& signature, uint64_t label);

  /// Memory of what was added.
  uint64_t bytes() const;
  /// The most memory that one added text needs.
  static double bytes_per_text(double threshold);

 private:
  struct Slot {
    uint32_t tag = 0, number = 0;  // number: of the text, from 1
    bool is_free() const { return number == 0; }
    uint64_t spread() const { return uint64_t(tag) << 32; }
  };
  struct Text {
    MinHashSignature signature;
    uint64_t label;
  };
  static constexpr size_t kTextsOfChunk = 4096, kMostOfBand = 32;
  static constexpr uint64_t kMostTexts = UINT32_MAX - 1;

  uint32_t tag(const MinHashSignature& signature, int band) const;
  const Text& text(uint32_t number) const {
    return chunks_[(number - 1) / kTextsOfChunk][(number - 1) % kTextsOfChunk];
  }

  double threshold_;
  Bands bands_;
  std::vector<SegmentedTable<Slot>> tables_;     // one for each band
  std::vector<std::unique_ptr<Text[]>> chunks_;  // of kTextsOfChunk
  uint64_t size_ = 0;
  std::vector<uint32_t> candidates_;  // of find
};

}  // namespace trainctl::data
