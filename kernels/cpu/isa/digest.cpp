#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

#if defined(__AVX2__)
typedef uint64_t DigestWords __attribute__((vector_size(kRegisterBytes)));

#if defined(__AVX512F__)
TRAINCTL_INLINE DigestWords digest_load(const uint32_t* bits) {
  return (DigestWords)_mm512_maskz_cvtepu32_epi64(0xff, _mm256_loadu_si256((const __m256i_u*)bits));
}
TRAINCTL_INLINE DigestWords digest_load(const uint16_t* bits) {
  return (DigestWords)_mm512_maskz_cvtepu16_epi64(0xff, _mm_loadu_si128((const __m128i_u*)bits));
}
TRAINCTL_INLINE DigestWords digest_load(const uint8_t* bits) {
  return (DigestWords)_mm512_maskz_cvtepu8_epi64(0xff, _mm_loadl_epi64((const __m128i_u*)bits));
}

/// (z ^ z >> 32) * kDigestFactor
TRAINCTL_INLINE DigestWords digest_round(DigestWords z) { return (z ^ z >> 32) * kDigestFactor; }
#else
TRAINCTL_INLINE DigestWords digest_load(const uint32_t* bits) {
  return (DigestWords)_mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i_u*)bits));
}
TRAINCTL_INLINE DigestWords digest_load(const uint16_t* bits) {
  return (DigestWords)_mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i_u*)bits));
}
TRAINCTL_INLINE DigestWords digest_load(const uint8_t* bits) {
  return (DigestWords)_mm256_cvtepu8_epi64(_mm_loadu_si32(bits));
}

TRAINCTL_INLINE DigestWords product_of_low_halves(DigestWords a, DigestWords b) {
  return (DigestWords)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

/// (z ^ z >> 32) * kDigestFactor. Of three products of 32 bits: gcc 12 takes as many, but finds the high half of
/// z ^ z >> 32 again, which is that of z.
TRAINCTL_INLINE DigestWords digest_round(DigestWords z) {
  const DigestWords high = z >> 32, low = z ^ high;
  const DigestWords factor = DigestWords{} + kDigestFactor, factor_high = factor >> 32;
  const DigestWords crossed = product_of_low_halves(high, factor) + product_of_low_halves(low, factor_high);
  return product_of_low_halves(low, factor) + (crossed << 32);
}
#endif

/// Of whole registers of a row.
class DigestSums {
 public:
  /// Adds the first elements of n; returns how many.
  template <typename Bits>
  TRAINCTL_INLINE int64_t add(uint64_t row, const Bits* bits, int64_t n) {
    DigestWords place;
    for (int i = 0; i < kWords; ++i) place[i] = row + uint64_t(i) * kDigestStep;
    int64_t c = 0;
    for (; c + kWords <= n; c += kWords) {
      const DigestWords z = digest_round(digest_round(place ^ digest_load(bits + c)));
      sums_ += z ^ z >> 32;
      place += kWords * kDigestStep;
    }
    return c;
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (int i = 0; i < kWords; ++i) sum += sums_[i];
    return sum;
  }

 private:
  static constexpr int kWords = kRegisterBytes / int(sizeof(uint64_t));
  DigestWords sums_{};
};
#else
/// A register of two words is slower than one word at a time.
struct DigestSums {
  int64_t add(uint64_t, const void*, int64_t) { return 0; }
  uint64_t total() const { return 0; }
};
#endif

template <typename Bits>
uint64_t digest_as(const DigestBox& box) {
  DigestSums sums;
  uint64_t sum = 0;
  for (int64_t r = 0; r < box.data.rows; ++r) {
    const Bits* const bits = static_cast<const Bits*>(box.data.data) + r * box.data.stride;
    const uint64_t row = digest_row(box.tensor, box.first + r * box.row_step);
    for (int64_t c = sums.add(row, bits, box.data.cols); c < box.data.cols; ++c)
      sum += digest_element(row, c, bits[c]);
  }
  return sum + sums.total();
}

}  // namespace

uint64_t digest(const DigestBox& box) {
  typedef uint32_t Word __attribute__((may_alias));
  typedef uint16_t Half __attribute__((may_alias));
  switch (size_of(box.data.dtype)) {
    case 4: return digest_as<Word>(box);
    case 2: return digest_as<Half>(box);
    default: return digest_as<unsigned char>(box);
  }
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
