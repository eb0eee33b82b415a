// Memory laid out by walking the same code twice: once to measure, once to place. What the plan prints is
// what is taken.
#pragma once
#include "kernels/tensor.h"

namespace trainctl {

/// Hands out consecutive 64-byte aligned matrices of one buffer; with a null base only counts.
class Arena {
 public:
  explicit Arena(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  kernels::Matrix take(DType dtype, int64_t rows, int64_t cols) {
    void* at = take_bytes(size_t(rows * cols) * size_of(dtype));
    return kernels::matrix(at, dtype, rows, cols);
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
