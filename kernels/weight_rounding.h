// How an update rounds weights that are kept in bf16 alone (UpdateBox without master weights). Pure.
//
// A value between two neighbours becomes one of them at random, so that its mean is right: rounded to the
// nearest, a weight would not move at all as long as its updates are below 2^-9 of itself, since bf16 has
// steps of 2^-8 to 2^-7. The random number is a hash of the parameter (with the run's seed), of the number of
// the update and of the element's index in the whole parameter. So the bits depend neither on the mesh, nor
// on how the parameter is cut, nor on the device. Each of 2^32 elements that follow each other from a
// multiple of that on has another hash, so that of all of them exactly f / 2^16 are rounded up, where f
// are the 16 bits that a value loses. A value that bf16 holds stays as it is.
#pragma once
#include <bit>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace trainctl::kernels {

/// The end of SplitMix64.
constexpr uint64_t mixed_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// What the hashes of elements have in common whose indices have the same upper half.
struct RoundingKey {
  uint32_t low = 0, high = 0;
};
/// parameter: UpdateBox::rounding. index: of an element.
constexpr RoundingKey rounding_key(uint64_t parameter, uint32_t update, uint64_t index) {
  const uint64_t of_update = mixed_bits(parameter + (uint64_t(update) + 1) * 0x9e3779b97f4a7c15u);
  const uint64_t key = mixed_bits(of_update + (index >> 32) * 0xd1342543de82ef95u);
  return {uint32_t(key), uint32_t(key >> 32)};
}

/// Of an element with this lower half of its index. For a key, another number for each of them.
constexpr uint32_t weight_noise(const RoundingKey& key, uint32_t index) {
  uint32_t h = index * 0x9e3779b9u + key.low;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  h = (h ^ (h >> 16) ^ key.high) * 0x2c1b3c6du;
  return h ^ (h >> 15);
}

inline bf16 rounded_weight(float x, uint32_t noise) {
  const auto u = std::bit_cast<uint32_t>(x);
  bf16 result(x);
  if ((u & 0x7f800000u) != 0x7f800000u) result.bits = uint16_t((u + (noise & 0xffffu)) >> 16);
  return result;
}

}  // namespace trainctl::kernels
