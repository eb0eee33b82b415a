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

}  // namespace trainctl::kernels
