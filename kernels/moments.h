// The formats in which an update keeps the moments of a parameter. Pure.
//
//   f32    as computed
//   bf16   the upper half of an f32
//   int8   of each block of kMomentBlock values that follow each other in a box (in row-major order; the last
//          one may be shorter): one f32 scale s, the largest |x| of the block, and for each value a code q.
//          With n = 127 for a moment with a sign, 255 for one without:
//            x = sign(q) * s * t^4,   t = |q| / n,   computed in f32 as s * ((t * t) * (t * t))
//          In powers of four, since the root of a second moment divides: neighbours differ by 4 / |q| of
//          themselves, the smallest is 2^-28 of the largest with a sign, 2^-32 without. A second moment above
//          zero never has the code 0, so that no root becomes zero.
//
// A value between two neighbours becomes one of them at random, so that its mean is right: rounded to the
// nearest, a second moment that loses 1 - beta2 = 0.001 of itself in a step would never get smaller, since
// bf16 has steps of 2^-8 to 2^-7, int8 larger ones. The random number is a hash of the value's own bits, of
// its place in its block and of the number of the update, so it depends neither on the mesh nor on the
// device. A value that the format holds stays as it is. Sources: blocks and codes, arXiv:2110.02861 (there
// with a table of codes); the hash is that of MurmurHash3's end.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "runtime/base/dtype.h"
#include "runtime/base/words.h"

namespace trainctl::kernels {

enum class Moments : uint8_t { f32, bf16, int8 };
}  // namespace trainctl::kernels
template <>
struct trainctl::Words<trainctl::kernels::Moments> {
  static constexpr std::string_view list[] = {"f32", "bf16", "int8"};
};
namespace trainctl::kernels {

inline constexpr int64_t kMomentBlock = 256;
constexpr int64_t moment_blocks(int64_t values) { return (values + kMomentBlock - 1) / kMomentBlock; }
/// Of one value, and of a scale where there is one.
constexpr double bytes_of_moment(Moments format) {
  return format == Moments::f32 ? 4 : format == Moments::bf16 ? 2 : 1 + 4.0 / double(kMomentBlock);
}

/// What a value's hash has besides the value: the update and the place in its block.
constexpr uint32_t rounding_salt(uint32_t update, int64_t place) {
  return update * 0x9e3779b9u + uint32_t(place) * 0x27d4eb2fu;
}
inline uint32_t rounding_noise(float x, uint32_t salt) {
  uint32_t h = std::bit_cast<uint32_t>(x) + salt;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

inline bf16 rounded_moment(float x, uint32_t salt) {
  const auto u = std::bit_cast<uint32_t>(x);
  bf16 result(x);
  if ((u & 0x7f800000u) != 0x7f800000u)
    result.bits = uint16_t((u + (rounding_noise(x, salt) & 0xffffu)) >> 16);
  return result;
}

/// The codes of moments with a sign, or of those without.
struct MomentCodes {
  bool has_sign = false;
  int most() const { return has_sign ? 127 : 255; }
  /// Of code q >= 0.
  float size_of(int q, float scale) const {
    const float t = float(q) / float(most()), square = t * t;
    return scale * (square * square);
  }
  /// Of the stored byte.
  float value(uint8_t byte, float scale) const {
    if (!has_sign) return size_of(byte, scale);
    const int q = int8_t(byte);
    return q < 0 ? -size_of(-q, scale) : size_of(q, scale);
  }
  uint8_t code(float x, float scale, uint32_t salt) const {
    const float size = std::fabs(x);
    if (!(size > 0) || !(scale > 0)) return 0;
    const float place = std::sqrt(std::sqrt(size / scale)) * float(most());
    int q = std::clamp(int(place), 0, most() - 1);
    const float below = size_of(q, scale), above = size_of(q + 1, scale);
    const float chance = (size - below) / (above - below);
    if (float(rounding_noise(x, salt) >> 8) * 0x1p-24f < chance) ++q;
    if (!has_sign && q == 0) q = 1;
    return uint8_t(x < 0 ? -q : q);
  }
};

/// Values [begin, begin + n) of a box's moments, n <= kMomentBlock, begin a multiple of it. `scales`: null
/// but for int8.
struct MomentBlock {
  void* moments = nullptr;
  float* scales = nullptr;
  Moments format = Moments::f32;
  MomentCodes codes;
  int64_t begin = 0, n = 0;

  void read(float* out) const {
    if (format == Moments::f32) {
      std::copy_n(static_cast<const float*>(moments) + begin, n, out);
    } else if (format == Moments::bf16) {
      const auto* from = static_cast<const bf16*>(moments) + begin;
      for (int64_t i = 0; i < n; ++i) out[i] = float(from[i]);
    } else {
      const auto* from = static_cast<const uint8_t*>(moments) + begin;
      const float scale = scales[begin / kMomentBlock];
      for (int64_t i = 0; i < n; ++i) out[i] = codes.value(from[i], scale);
    }
  }
  void write(const float* values, uint32_t update) const {
    if (format == Moments::f32) {
      std::copy_n(values, n, static_cast<float*>(moments) + begin);
    } else if (format == Moments::bf16) {
      auto* to = static_cast<bf16*>(moments) + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = rounded_moment(values[i], rounding_salt(update, i));
    } else {
      auto* to = static_cast<uint8_t*>(moments) + begin;
      float scale = 0;
      for (int64_t i = 0; i < n; ++i) scale = std::max(scale, std::fabs(values[i]));
      scales[begin / kMomentBlock] = scale;
      for (int64_t i = 0; i < n; ++i) to[i] = codes.code(values[i], scale, rounding_salt(update, i));
    }
  }
};

}  // namespace trainctl::kernels
