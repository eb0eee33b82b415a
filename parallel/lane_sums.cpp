#include "parallel/lane_sums.h"

#include "runtime/base/error.h"

namespace trainctl::parallel {

void add_lanes(kernels::Backend& backend, kernels::Stream& stream, DType reduction, kernels::Matrix left,
               kernels::Matrix right, kernels::Matrix out) {
  if (reduction == DType::bf16) return backend.add_rounded(stream, left, right, out);
  ENSURE(left.dtype == DType::f32 && right.dtype == DType::f32 && out.dtype == DType::f32);
  const void* inputs[2] = {left.data, right.data};
  backend.tree_sum(stream, inputs, out.data, DType::f32, out.count());
}

}  // namespace trainctl::parallel
