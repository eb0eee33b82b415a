#include "parallel/lane_sums.h"

#include "runtime/base/error.h"

namespace trainctl::parallel {

void add_lanes(kernels::Backend& backend, kernels::Stream& stream, DType reduction, kernels::Matrix left,
               kernels::Matrix right, kernels::Matrix out) {
  if (reduction == DType::bf16)
    return backend.run(stream, kernels::AddRounded{.left = left, .right = right, .out = out});
  ENSURE(left.dtype == DType::f32 && right.dtype == DType::f32 && out.dtype == DType::f32);
  const void* inputs[2] = {left.data, right.data};
  backend.run(stream, kernels::TreeSum{.inputs = inputs, .out = out.data, .dtype = DType::f32,
                                       .count = out.count()});
}

}  // namespace trainctl::parallel
