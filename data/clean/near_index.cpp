#include "data/clean/near_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/clean/word_scanner.h"
#include "runtime/base/error.h"

namespace trainctl::data {

double Bands::probability(double similarity) const {
  return 1 - std::pow(1 - std::pow(similarity, rows), bands);
}

Bands bands_for(double threshold) {
  constexpr int kMostRows = 16;
  constexpr double kFound = 0.98;
  Bands best{.bands = 128, .rows = 1};
  for (int rows = 2; rows <= kMostRows; ++rows)
    if (const Bands more{.bands = 128 / rows, .rows = rows}; more.probability(threshold) >= kFound)
      best = more;
  return best;
}

NearIndex::NearIndex(double threshold)
    : threshold_(threshold), bands_(bands_for(threshold)), tables_(size_t(bands_.bands)) {
  ENSURE(threshold > 0 && threshold <= 1, "a threshold of {}", threshold);
}

double NearIndex::bytes_per_text(double threshold) {
  return sizeof(Text) + bands_for(threshold).bands * SegmentedTable<Slot>::kMostBytes;
}

uint64_t NearIndex::bytes() const {
  uint64_t bytes = chunks_.size() * kTextsOfChunk * sizeof(Text);
  for (const auto& table : tables_) bytes += table.bytes();
  return bytes;
}

uint32_t NearIndex::tag(const MinHashSignature& signature, int band) const {
  uint64_t parts[2] = {};
  std::memcpy(parts, signature.data() + band * bands_.rows, size_t(bands_.rows));
  return uint32_t(mixed_bits(mixed_bits(parts[0] + 1) ^ parts[1]) >> 32);
}

std::optional<NearIndex::Match> NearIndex::find(const MinHashSignature& signature) {
  candidates_.clear();
  for (int band = 0; band < bands_.bands; ++band) {
    const uint32_t wanted = tag(signature, band);
    tables_[size_t(band)].visit(uint64_t(wanted) << 32, [&](const Slot& slot) {
      if (slot.tag == wanted) candidates_.push_back(slot.number);
      return false;
    });
  }
  std::sort(candidates_.begin(), candidates_.end());
  candidates_.erase(std::unique(candidates_.begin(), candidates_.end()), candidates_.end());
  std::optional<Match> best;
  for (const uint32_t number : candidates_) {
    const double similarity = similarity_of(signature, text(number).signature);
    if (similarity >= threshold_ && (!best || similarity > best->similarity))
      best = Match{text(number).label, similarity};
  }
  return best;
}

void NearIndex::add(const MinHashSignature& signature, uint64_t label) {
  ENSURE(size_ < kMostTexts, "{} texts", size_);
  if (size_ % kTextsOfChunk == 0) chunks_.push_back(std::make_unique<Text[]>(kTextsOfChunk));
  chunks_.back()[size_ % kTextsOfChunk] = {signature, label};
  const auto number = uint32_t(++size_);
  for (int band = 0; band < bands_.bands; ++band) {
    const uint32_t wanted = tag(signature, band);
    size_t equal = 0;
    tables_[size_t(band)].visit(uint64_t(wanted) << 32, [&](const Slot& slot) {
      equal += slot.tag == wanted;
      return equal == kMostOfBand;
    });
    if (equal < kMostOfBand) tables_[size_t(band)].add({wanted, number});
  }
}

}  // namespace trainctl::data
