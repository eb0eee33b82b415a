// Arena lays out memory. The same code runs twice: once to measure and once to place. So a rank allocates
// exactly what the plan prints.
#pragma once
#include "kernels/tensor.h"

namespace trainctl {

/// Returns consecutive 64-byte aligned matrices in one buffer. With a null base it only counts bytes.
class Arena {
 public:
  explicit Arena(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  kernels::Matrix take(DType dtype, int64_t rows, int64_t cols) {
    void* at = take_bytes(size_t(rows * cols) * size_of(dtype));
    return kernels::matrix(at, dtype, rows, cols);
  }
  /// The same with a gap between rows that would share the sets of a CPU's cache.
  kernels::Matrix take_alone(DType dtype, int64_t rows, int64_t cols) {
    return take(dtype, rows, kernels::spread_stride(dtype, cols)).columns(0, cols);
  }
  void* take_bytes(size_t bytes) {
    void* at = base_ ? base_ + used_ : nullptr;
    used_ += (bytes + 63) / 64 * 64;
    return at;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace trainctl
