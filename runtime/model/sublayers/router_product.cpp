#include "runtime/model/sublayers/router_product.h"

#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {

using kernels::Matrix;

void RouterProduct::pack(const LayerContext& c) {
  c.backend.run(c.stream, kernels::Pack{.w = c.params.weight(weight_), .packed = packed_.get()});
}

void RouterProduct::forward(const LayerContext& c, Matrix x, Matrix logits) const {
  c.backend.run(c.stream,
                kernels::LinearForward{
                    .x = x, .w = packed_.get(), .bias = vector_weight(c.params, bias_), .y = logits});
}

void RouterProduct::backward_input(const LayerContext& c, Matrix dlogits, Matrix own, Matrix copy,
                                   Matrix dx) const {
  c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = dlogits, .w = packed_.get(), .dx = own});
  if (c.shape.compute == DType::f32) {
    c.backend.run(c.stream, kernels::Add{.src = own, .dst = dx});
    return;
  }
  c.backend.run(c.stream, kernels::Copy{.src = dx, .dst = copy});
  c.backend.run(c.stream, kernels::AddRounded{.left = own, .right = copy, .out = dx});
}

void RouterProduct::backward_weight(const LayerContext& c, Matrix dlogits, Matrix x, LanePlace at) const {
  c.backend.run(c.stream, kernels::LinearBackwardWeight{.dy = dlogits,
                                                        .x = x,
                                                        .dw = c.params.gradient(weight_, at.lane),
                                                        .dbias = vector_gradient(c.params, bias_, at.lane),
                                                        .accumulate = !at.first});
}

}  // namespace trainctl
