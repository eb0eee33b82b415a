#include "parallel/tensor_parallel.h"

#include <algorithm>

namespace trainctl::parallel {

using kernels::Matrix;

size_t TensorParallel::scratch_bytes(int tp, DType dtype, int64_t full_rows, int64_t cols) {
  if (tp == 1) return 0;
  const size_t full = size_t(full_rows * cols) * size_of(dtype);
  return std::max(full, all_reduce_scratch_bytes(tp, dtype, full_rows * cols));
}

Matrix TensorParallel::enter(Matrix local, Matrix full) {
  if (!cut_rows_) return local;
  gather(local, full);
  return full;
}

void TensorParallel::gather(Matrix own, Matrix all) {
  ENSURE(own.contiguous() && all.contiguous() && all.rows == own.rows * size());
  all_gather(comm_, stream_, own.data, all.data, size_t(own.count()) * size_of(own.dtype));
}

void TensorParallel::add(Matrix sums) {
  if (size() == 1) return;
  ENSURE(sums.contiguous() && scratch_ != nullptr);
  all_reduce(comm_, backend_, stream_, sums.data, scratch_, sums.dtype, sums.count());
}

Matrix TensorParallel::leave(Matrix partial, Matrix local) {
  if (size() == 1) return partial;
  ENSURE(partial.contiguous() && scratch_ != nullptr);
  if (!cut_rows_) {
    all_reduce(comm_, backend_, stream_, partial.data, scratch_, partial.dtype, partial.count());
    return partial;
  }
  ENSURE(local.contiguous() && partial.rows == local.rows * size());
  reduce_scatter(comm_, backend_, stream_, partial.data, local.data, scratch_, partial.dtype, local.count());
  return local;
}

}  // namespace trainctl::parallel
