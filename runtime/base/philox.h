// Counter-based random numbers: the value at (seed, purpose, step, index) is a function of those four
// numbers alone, so every mesh draws the same ones.
//
// Source: Philox 4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace trainctl {

/// What a random stream is for; part of the counter, so that no two uses share numbers.
enum class RandomPurpose : uint32_t {
  kInit = 1,
  kShuffle = 2,
  kMixture = 3,
  kSample = 4,
  kTest = 5,
  kReplay = 6
};

/// One Philox block: 128 random bits from a 128-bit counter and a 64-bit key.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c[0], p1 = uint64_t(0xCD9E8D57u) * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k[1], uint32_t(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

/// The random stream of (seed, purpose, stream); `block(i)` may be called in any order from any thread.
class Philox {
 public:
  /// `stream` distinguishes users of one purpose: a hash of the parameter's name, a step, a source.
  Philox(uint64_t seed, RandomPurpose purpose, uint64_t stream = 0)
      : key_{uint32_t(seed), uint32_t(seed >> 32) ^ (uint32_t(purpose) * 0x85EBCA6Bu)}, stream_(stream) {}

  std::array<uint32_t, 4> block(uint64_t index) const {
    return philox4x32({uint32_t(index), uint32_t(index >> 32), uint32_t(stream_), uint32_t(stream_ >> 32)}, key_);
  }
  uint64_t bits64(uint64_t index) const {
    const auto b = block(index);
    return uint64_t(b[1]) << 32 | b[0];
  }
  /// Uniform in [0, 1) with 53 random bits.
  double uniform(uint64_t index) const { return double(bits64(index) >> 11) * 0x1.0p-53; }
  /// The standard normals with numbers 4 * group .. 4 * group + 3, by Box-Muller from one block. Computed in
  /// double and rounded to float: two machines with accurate libms differ at most in the last bit of the
  /// float.
  std::array<float, 4> normals(uint64_t group) const {
    const auto b = block(group);
    std::array<float, 4> out;
    for (int i = 0; i < 4; i += 2) {
      const double u = (double(b[size_t(i)]) + 1.0) * 0x1.0p-32, v = double(b[size_t(i) + 1]) * (6.283185307179586 * 0x1.0p-32);
      const double radius = std::sqrt(-2.0 * std::log(u));
      out[size_t(i)] = float(radius * std::cos(v));
      out[size_t(i) + 1] = float(radius * std::sin(v));
    }
    return out;
  }
  float normal(uint64_t index) const { return normals(index / 4)[index % 4]; }

 private:
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
};

}  // namespace trainctl
