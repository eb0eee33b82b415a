// Visits elements of any dtype as doubles, to count and compare them.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

#include "runtime/base/dtype.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {

/// Calls visit(index, double) for each element of `data`. A double holds every dtype exactly.
template <typename Visit>
void visit_values(DType dtype, std::span<const std::byte> data, Visit&& visit) {
  const auto each = [&]<typename Stored>(Stored) {
    for (size_t i = 0; i < data.size() / sizeof(Stored); ++i) {
      Stored value;
      std::memcpy(&value, data.data() + i * sizeof(Stored), sizeof(Stored));
      if constexpr (std::is_same_v<Stored, bf16> || std::is_same_v<Stored, f16>)
        visit(i, double(float(value)));
      else
        visit(i, double(value));
    }
  };
  switch (dtype) {
    case DType::f32: return each(float{});
    case DType::bf16: return each(bf16{});
    case DType::f16: return each(f16{});
    case DType::f64: return each(double{});
    case DType::i32: return each(int32_t{});
    case DType::u16: return each(uint16_t{});
    case DType::u32: return each(uint32_t{});
    case DType::i8: return each(int8_t{});
    case DType::u8: return each(uint8_t{});
  }
  ENSURE(false, "dtype {}", int(dtype));
}

}  // namespace trainctl::ckpt
