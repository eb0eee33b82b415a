// Moments in fewer bits (kernels/moments.h): the bits of MomentBlock::read and write, sixteen values at a
// time; and weights in bf16 (kernels/weight_rounding.h).
#include "kernels/cpu/isa/rounding.h"
#include "kernels/cpu/isa/table.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

typedef uint8_t ByteRegister __attribute__((vector_size(kRegisterLanes)));
typedef int8_t SignedByteRegister __attribute__((vector_size(kRegisterLanes)));
static_assert(kMomentBlock % kLanes == 0);

/// q / most for whole numbers q up to most, rounded once. By the rest of the rounded quotient, where there is
/// FMA: a division takes as long as four products.
template <int kMost>
TRAINCTL_INLINE Register share_of_most(Register q) {
#if defined(__FMA__)
  constexpr float kInverse = 1.0f / float(kMost);
  const Register share = q * kInverse;
  return fma(fma(-share, float(kMost) - Register{}, q), kInverse - Register{}, share);
#else
  return q / float(kMost);
#endif
}

template <int kMost>
TRAINCTL_INLINE Register size_of_code(Register q, float scale) {
  const Register t = share_of_most<kMost>(q), square = t * t;
  return scale * (square * square);
}

TRAINCTL_INLINE WordRegister noise(Register x, WordRegister salt) {
  WordRegister h = (WordRegister)x + salt;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

/// The salts of the values from `place` on.
TRAINCTL_INLINE WordRegister salts(uint32_t update, int64_t place) {
  return counted_from(uint32_t(place)) * 0x27d4eb2fu + update * 0x9e3779b9u;
}

/// x, of which the lower half is lost, up where it and the lower half of the noise reach a step.
TRAINCTL_INLINE HalfRegister drawn_bf16(Register x, WordRegister noises) {
  const WordRegister u = (WordRegister)x;
  const HalfRegister drawn = __builtin_convertvector((u + (noises & 0xffffu)) >> 16, HalfRegister);
  const auto finite = __builtin_convertvector((u & 0x7f800000u) != 0x7f800000u, HalfRegister);
  return (drawn & finite) | (narrow(x) & ~finite);
}

/// MomentCodes::code of positive scales.
template <bool kSigned>
TRAINCTL_INLINE IntRegister code_of(Register x, float scale, WordRegister salt) {
  constexpr int kMost = kSigned ? 127 : 255;
  const Register size = (Register)((WordRegister)x & 0x7fffffffu);
  IntRegister q = __builtin_convertvector(square_root(square_root(size / scale)) * float(kMost), IntRegister);
  q = q < 0 ? IntRegister{} : q;
  q = q > kMost - 1 ? kMost - 1 - IntRegister{} : q;
  const Register at = __builtin_convertvector(q, Register);
  const Register below = size_of_code<kMost>(at, scale), above = size_of_code<kMost>(at + 1.0f, scale);
  const Register chance = (size - below) / (above - below);
  const Register drawn = __builtin_convertvector((IntRegister)(noise(x, salt) >> 8), Register) * 0x1p-24f;
  q = q - (drawn < chance);  // a mask is -1
  if (!kSigned) q = q == 0 ? 1 - IntRegister{} : q;
  q = size > 0.0f ? q : IntRegister{};
  return x < 0.0f ? -q : q;
}

template <bool kSigned>
void read_codes(const MomentBlock& block, float* out) {
  const auto* from = static_cast<const uint8_t*>(block.moments) + block.begin;
  const float scale = block.scales[block.begin / kMomentBlock];
  alignas(64) uint8_t room[kMomentBlock] = {};
  std::memcpy(room, from, size_t(block.n));
  for (int64_t i = 0; i < block.n; i += kRegisterLanes) {
    IntRegister q;
    if constexpr (kSigned) {
      SignedByteRegister bytes;
      std::memcpy(&bytes, room + i, sizeof bytes);
      q = __builtin_convertvector(bytes, IntRegister);
    } else {
      ByteRegister bytes;
      std::memcpy(&bytes, room + i, sizeof bytes);
      q = __builtin_convertvector(bytes, IntRegister);
    }
    const Register size =
        size_of_code < kSigned ? 127 : 255 > (__builtin_convertvector(q < 0 ? -q : q, Register), scale);
    reinterpret_cast<RegisterUnaligned*>(out + i)[0] = q < 0 ? -size : size;
  }
}

template <bool kSigned>
void write_codes(const MomentBlock& block, const float* values, float scale, uint32_t update) {
  alignas(64) uint8_t room[kMomentBlock];
  for (int64_t i = 0; scale > 0 && i < block.n; i += kRegisterLanes) {
    const Register x = reinterpret_cast<const RegisterUnaligned*>(values + i)[0];
    const auto bytes = __builtin_convertvector(code_of<kSigned>(x, scale, salts(update, i)), ByteRegister);
    std::memcpy(room + i, &bytes, sizeof bytes);
  }
  auto* to = static_cast<uint8_t*>(block.moments) + block.begin;
  if (scale > 0)
    std::memcpy(to, room, size_t(block.n));
  else
    std::memset(to, 0, size_t(block.n));
}

void write_bf16(const MomentBlock& block, const float* values, uint32_t update) {
  alignas(64) uint16_t room[kMomentBlock];
  for (int64_t i = 0; i < block.n; i += kRegisterLanes) {
    const Register x = reinterpret_cast<const RegisterUnaligned*>(values + i)[0];
    const HalfRegister stored = drawn_bf16(x, noise(x, salts(update, i)));
    std::memcpy(room + i, &stored, sizeof stored);
  }
  std::memcpy(static_cast<bf16*>(block.moments) + block.begin, room, size_t(block.n) * sizeof(uint16_t));
}

}  // namespace

void read_moments(const MomentBlock& block, float* out) {
  if (block.format == Moments::int8)
    return block.codes.has_sign ? read_codes<true>(block, out) : read_codes<false>(block, out);
  const auto* from = static_cast<const bf16*>(block.moments) + block.begin;
  for_lanes(block.n, [&](int64_t i, auto lanes) { store(out + i, load(from + i, lanes), lanes); });
}

void write_moments(const MomentBlock& block, float* values, uint32_t update) {
  // So that whole vectors may be read; no value has a smaller size.
  for (int64_t i = block.n; i % kLanes != 0; ++i) values[i] = 0;
  if (block.format == Moments::bf16) return write_bf16(block, values, update);
  V largest = {};
  for (int64_t i = 0; i < block.n; i += kLanes) {
    const V v = load(values + i, Full{});
    largest = larger(largest, maximum(v, -v));
  }
  const float scale = lane_max(largest);
  block.scales[block.begin / kMomentBlock] = scale;
  block.codes.has_sign ? write_codes<true>(block, values, scale, update)
                       : write_codes<false>(block, values, scale, update);
}

void widen_weights(const bf16* values, int64_t n, float* out) {
  for_lanes(n, [&](int64_t i, auto lanes) { store(out + i, load(values + i, lanes), lanes); });
}

void round_weights(const float* values, int64_t n, const RoundingKey& key, uint32_t index, bf16* out) {
  int64_t i = 0;
  for (; i + kRegisterLanes <= n; i += kRegisterLanes) {
    const Register x = reinterpret_cast<const RegisterUnaligned*>(values + i)[0];
    reinterpret_cast<HalfRegisterUnaligned*>(out + i)[0] =
        (HalfRegisterUnaligned)drawn_bf16(x, weight_noises(key, index + uint32_t(i)));
  }
  for (; i < n; ++i) out[i] = rounded_weight(values[i], weight_noise(key, index + uint32_t(i)));
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
