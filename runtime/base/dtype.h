// The number formats of tensors and files, and the two 16-bit formats on the host.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trainctl {

enum class DType : uint8_t { f32, bf16, f64, i32, u16, u32, i8, u8, f16 };

constexpr size_t size_of(DType d) {
  switch (d) {
    case DType::f64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16: return 2;
    case DType::i8:
    case DType::u8: return 1;
  }
  return 0;
}

/// Lower-case name as the job spec writes it: "f32", "bf16", ...
constexpr std::string_view name_of(DType d) {
  switch (d) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
    case DType::u16: return "u16";
    case DType::u32: return "u32";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
    case DType::f16: return "f16";
  }
  return "?";
}

/// bfloat16: the upper half of an IEEE binary32. Conversion rounds to nearest even and keeps NaN a NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    bits = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t((u >> 16) | 0x40)
                                           : uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

/// IEEE binary16. Conversion from f32 rounds to nearest even, keeps numbers below 2^-14 (in steps of 2^-24),
/// makes infinity of 65520 and above, and keeps NaN a NaN.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    bits = uint16_t(sign | (size > kInfinity32     ? 0x7e00u | (size >> 13 & 0x1ffu)
                            : size >= kOverflow32  ? 0x7c00u
                            : size >= kLeastNormal ? (size - kBias + 0xfffu + (size >> 13 & 1)) >> 13
                                                   : below_normal(size)));
  }
  explicit operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size < 0x400u) {
      const float small = float(size) * 0x1p-24f;
      return bits & 0x8000u ? -small : small;
    }
    const uint32_t quiet = size > 0x7c00u ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | quiet | ((size << 13) + (size >= 0x7c00u ? 2 * kBias : kBias)));
  }

 private:
  static constexpr uint32_t kInfinity32 = 0x7f800000u, kOverflow32 = 0x477ff000u, kLeastNormal = 0x38800000u;
  static constexpr uint32_t kBias = 112u << 23;  ///< between the exponents of the formats
  /// Added to 0.5, whose last bit is 2^-24, a number is rounded to such steps.
  static uint32_t below_normal(uint32_t size) {
    return std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  }
};

}  // namespace trainctl
