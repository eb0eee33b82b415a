// The addition of the lanes' tree (parallel/lanes.h) in the format in which gradients travel. A value of the
// tree is the gradient of a lane, or the sum of two neighbouring values. With bf16 every value but the last,
// the sum of all lanes, is rounded to bf16 before it is used, whether it is sent or stays in its rank: so a
// value is a function of the tree alone, and the bits do not depend on which ranks hold it.
#pragma once
#include "kernels/backend.h"

namespace trainctl::parallel {

/// Enqueues out = left + right, vectors or contiguous matrices of one shape.
///   reduction    f32: a sum of f32. bf16: operands are rounded to bf16 first (AddRounded)
///   left, right  f32, or bf16 where reduction is; so is out, which may be left or right
void add_lanes(kernels::Backend& backend, kernels::Stream& stream, DType reduction, kernels::Matrix left,
               kernels::Matrix right, kernels::Matrix out);

}  // namespace trainctl::parallel
