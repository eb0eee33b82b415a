#include "data/clean/min_hash.h"

#include <algorithm>

#include "data/clean/word_scanner.h"
#include "runtime/base/error.h"

namespace trainctl::data {
namespace {

constexpr size_t kSequencesAtOnce = 1024, kLanes = 32;
constexpr uint64_t kFactor = 0x9fb21c651e98df25;  // odd; of the polynomial of a sequence

/// For each permutation p: lowest[p] = min(lowest[p], factors[p] * x + offsets[p]) over all x, modulo 2^32.
[[gnu::always_inline]] inline void lower_all(const std::vector<uint32_t>& xs, uint32_t* lowest,
                                             const uint32_t* factors, const uint32_t* offsets) {
  for (size_t p = 0; p < 128; p += kLanes) {
    uint32_t low[kLanes];
    for (size_t i = 0; i < kLanes; ++i) low[i] = lowest[p + i];
    for (const uint32_t x : xs)
      for (size_t i = 0; i < kLanes; ++i) low[i] = std::min(low[i], factors[p + i] * x + offsets[p + i]);
    for (size_t i = 0; i < kLanes; ++i) lowest[p + i] = low[i];
  }
}
// The same integers on every machine; the widest vectors only change the time.
[[gnu::target("avx512f"), gnu::optimize("O3")]] void lower_avx512(const std::vector<uint32_t>& xs,
                                                                  uint32_t* l, const uint32_t* f,
                                                                  const uint32_t* o) {
  lower_all(xs, l, f, o);
}
[[gnu::target("avx2"), gnu::optimize("O3")]] void lower_avx2(const std::vector<uint32_t>& xs, uint32_t* l,
                                                             const uint32_t* f, const uint32_t* o) {
  lower_all(xs, l, f, o);
}
[[gnu::optimize("O3")]] void lower_plain(const std::vector<uint32_t>& xs, uint32_t* l, const uint32_t* f,
                                         const uint32_t* o) {
  lower_all(xs, l, f, o);
}
using Lower = void (*)(const std::vector<uint32_t>&, uint32_t*, const uint32_t*, const uint32_t*);
Lower fastest() {
  if (__builtin_cpu_supports("avx512f")) return lower_avx512;
  return __builtin_cpu_supports("avx2") ? lower_avx2 : lower_plain;
}

}  // namespace

MinHash::MinHash(int shingle_words) : shingle_words_(size_t(shingle_words)), window_(shingle_words_) {
  ENSURE(shingle_words > 0, "{} words", shingle_words);
  oldest_factor_ = 1;
  for (size_t i = 0; i < shingle_words_; ++i) oldest_factor_ *= kFactor;
  uint64_t state = 0;
  for (size_t p = 0; p < 128; ++p) {
    factors_[p] = uint32_t(mixed_bits(++state)) | 1;
    offsets_[p] = uint32_t(mixed_bits(++state));
  }
  sequences_.reserve(kSequencesAtOnce);
}

void MinHash::add_sequences() {
  static const Lower lower = fastest();
  lower(sequences_, lowest_.data(), factors_.data(), offsets_.data());
  sequences_.clear();
}

std::optional<MinHashSignature> MinHash::signature(std::string_view text) {
  lowest_.fill(UINT32_MAX);
  sequences_.clear();
  uint64_t words = 0, sequence = 0;
  size_t oldest = 0;  // in window_
  std::fill(window_.begin(), window_.end(), 0);
  scan_words(text, [&](uint64_t word) {
    sequence = sequence * kFactor + word - window_[oldest] * oldest_factor_;
    window_[oldest] = word;
    oldest = oldest + 1 == shingle_words_ ? 0 : oldest + 1;
    if (++words < shingle_words_) return;
    sequences_.push_back(uint32_t(mixed_bits(sequence) >> 32));
    if (sequences_.size() == kSequencesAtOnce) add_sequences();
  });
  if (words == 0) return std::nullopt;
  if (words < shingle_words_) sequences_.push_back(uint32_t(mixed_bits(sequence) >> 32));
  add_sequences();
  MinHashSignature signature;
  for (size_t p = 0; p < 128; ++p) signature[p] = uint8_t(mixed_bits(lowest_[p]));
  return signature;
}

double similarity_of(const MinHashSignature& a, const MinHashSignature& b) {
  int equal = 0;
  for (size_t p = 0; p < a.size(); ++p) equal += a[p] == b[p];
  constexpr double kByChance = 1.0 / 256;  // that bytes of different values are equal
  return std::max(0.0, (equal / double(a.size()) - kByChance) / (1 - kByChance));
}

}  // namespace trainctl::data
