#include "runtime/model/sublayers/latent_experts.h"

namespace trainctl {

using kernels::Matrix;

void LatentExperts::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, int first,
                            int64_t width) {
  if (width == 0) return;
  for (const Number number : {kIn, kSum})
    list.push_back({first + number, Life::activation, s.compute, s.rows, width});
  for (const Number number : {kInGradient, kSumGradient})
    list.push_back({first + number, Life::gradient, s.compute, s.rows, width});
}

void LatentExperts::declare_parameters(ParamList& list, int64_t hidden, int64_t width, Weights places) {
  if (width == 0) return;
  list.add({.name = "mlp.fc1_latent_proj.weight",
            .rows = width,
            .cols = hidden,
            .place = places.in,
            .partial = true});
  list.add({.name = "mlp.fc2_latent_proj.weight",
            .rows = hidden,
            .cols = width,
            .residual = true,
            .place = places.out,
            .partial = true});
}

void LatentExperts::pack(const LayerContext& c) {
  in_.pack(c);
  out_.pack(c);
}

void LatentExperts::enter(const LayerContext& c, const Tensors& t, Matrix x) const {
  c.backend.run(c.stream, kernels::LinearForward{.x = in_.seen(c, t, x), .w = &in_.weight(c, t), .y = in(t)});
}

void LatentExperts::leave(const LayerContext& c, const Tensors& t, Matrix y) const {
  c.backend.run(c.stream,
                kernels::LinearForward{.x = out_.seen(c, t, sum(t)), .w = &out_.weight(c, t), .y = y});
}

void LatentExperts::leave_backward(const LayerContext& c, const Tensors& t, Matrix dy) const {
  c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = out_.seen_gradient(c, t, dy),
                                                       .w = &out_.weight_of_gradient(c, t),
                                                       .dx = sum_gradient(t)});
}

void LatentExperts::enter_backward(const LayerContext& c, const Tensors& t, Matrix dx) const {
  c.backend.run(c.stream, kernels::LinearBackwardInput{.dy = in_.seen_gradient(c, t, in_gradient(t)),
                                                       .w = &in_.weight_of_gradient(c, t),
                                                       .dx = dx});
}

void LatentExperts::backward_weight(const LayerContext& c, const Tensors& t, Matrix dy, Matrix x,
                                    LanePlace at) const {
  out_.backward_weight(c, t, dy, sum(t), at);
  in_.backward_weight(c, t, in_gradient(t), x, at);
}

}  // namespace trainctl
