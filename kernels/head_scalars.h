// The scalars that attention learns, one for each head: a row for each says what it is to a job, to kernels
// and in files.
#pragma once
#include <iterator>
#include <string_view>

#include "kernels/tensor.h"

namespace trainctl::kernels {

enum class HeadScalar {
  /// A score of its head that takes its share of the softmax and gives no value. Its factor of a row in
  /// HeadScalarBackward: -exp(sink - lse). Source: gpt-oss.
  sinks
};

/// What the backward pass of attention has of its queries: [M, H*D] each; q and dq as attention takes them.
struct QueryRows {
  Matrix q, out, dout, dq;
};
using QueryRow = Matrix QueryRows::*;  // nvcc writes a member of this type so that g++ warns, unless it has a name

struct HeadScalarRow {
  HeadScalar scalar;
  std::string_view word;  ///< in a job, and in the name of its parameter
  std::string_view meaning;
  std::string_view by_family;  ///< which families have it
  /// Its gradient is a sum of their products, each with a factor: HeadScalarBackward.
  QueryRow left, right;
};

inline constexpr HeadScalarRow kHeadScalars[] = {
    {HeadScalar::sinks, "sinks",
     "Each head has a learned score that takes its share of the softmax and gives no value (gpt-oss).",
     "gpt_oss: true; else false", &QueryRows::out, &QueryRows::dout},
};
static_assert([] {
  for (size_t i = 0; i < std::size(kHeadScalars); ++i)
    if (size_t(kHeadScalars[i].scalar) != i) return false;
  return true;
}());
constexpr const HeadScalarRow& row_of(HeadScalar scalar) { return kHeadScalars[size_t(scalar)]; }

/// A value for each of them, in the order of the rows.
template <typename T>
struct OfHeadScalars {
  T values[std::size(kHeadScalars)] = {};
  constexpr T& operator[](HeadScalar scalar) { return values[size_t(scalar)]; }
  constexpr const T& operator[](HeadScalar scalar) const { return values[size_t(scalar)]; }
  constexpr bool any() const {
    for (const T& value : values)
      if (value) return true;
    return false;
  }
};

}  // namespace trainctl::kernels
