// Matrix: a view of a row-major matrix in device memory. All arguments of kernels are matrices: an activation
// is [tokens, channels], a bias is [1, channels].
#pragma once
#include <cstdint>

#include "runtime/base/dtype.h"
#include "runtime/base/ensure.h"

namespace trainctl::kernels {

/// A view; it does not own memory. Element (r, c) is at data + (r * stride + c) * size_of(dtype). data ==
/// nullptr: empty.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  ///< elements between the starts of two rows; >= cols

  explicit operator bool() const { return data != nullptr; }
  bool contiguous() const { return stride == cols || rows <= 1; }
  int64_t count() const { return rows * cols; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  /// The same rows, columns [begin, begin + n).
  Matrix columns(int64_t begin, int64_t n) const {
    ENSURE(begin >= 0 && begin + n <= cols);
    return {static_cast<char*>(data) + begin * int64_t(size_of(dtype)), dtype, rows, n, stride};
  }
  /// Rows [begin, begin + n).
  Matrix row_range(int64_t begin, int64_t n) const {
    ENSURE(begin >= 0 && begin + n <= rows);
    return {static_cast<char*>(data) + begin * stride * int64_t(size_of(dtype)), dtype, n, cols, stride};
  }
};

inline Matrix matrix(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}
inline Matrix vector(void* data, DType dtype, int64_t n) { return {data, dtype, 1, n, n}; }

/// A list of matrices, as far as it decides the memory of an op on them.
struct BoxListShape {
  int64_t elements = 0, boxes = 0;
};

/// Whether rows of this stride share a few sets of a CPU's nearest cache: they do at multiples of 4096 bytes,
/// and a product that goes down their columns takes up to twice the time (two AVX2 cores, GPT-2 124M's weight
/// gradients of the MLP: 63 and 59 ms; 16 numbers further apart 33 and 35). Measured for f32 alone: bf16 keeps
/// its layout.
inline bool rows_share_cache_sets(DType dtype, int64_t stride) {
  return dtype == DType::f32 && stride % 1024 == 0;
}
constexpr int64_t kGapOfRows = 16;

/// The stride at which rows of `cols` numbers share no sets.
inline int64_t spread_stride(DType dtype, int64_t cols) {
  return rows_share_cache_sets(dtype, cols) ? cols + kGapOfRows : cols;
}

}  // namespace trainctl::kernels
