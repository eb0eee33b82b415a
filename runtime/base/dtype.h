// The number formats of tensors and files, and bfloat16 arithmetic on the host.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trainctl {

enum class DType : uint8_t { f32, bf16, f64, i32, u16, u32, i8, u8 };

constexpr size_t size_of(DType d) {
  switch (d) {
    case DType::f64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::bf16:
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

}  // namespace trainctl
