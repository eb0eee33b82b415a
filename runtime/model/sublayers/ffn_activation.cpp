#include "runtime/model/sublayers/ffn_activation.h"

namespace trainctl {

using kernels::Matrix;

namespace {

/// Of gpt-oss: g * sigmoid(1.702 g).
constexpr float kClampedAlpha = 1.702f;

}  // namespace

FfnStep::FfnStep(FfnActivation activation, float limit)
    : kind_(kernels::row_of(activation).kernel), limit_(limit) {}

void FfnStep::forward(const LayerContext& c, Matrix in, Matrix out) const {
  const int64_t f = out.cols;
  if (const auto* gate = std::get_if<kernels::Gate>(&kind_))
    c.backend.run(c.stream, kernels::GatedForward{.kind = *gate,
                                                  .gate = in.columns(0, f),
                                                  .up = in.columns(f, f),
                                                  .y = out,
                                                  .limit = limit_,
                                                  .alpha = kClampedAlpha});
  else
    c.backend.run(c.stream, kernels::ActivationForward{
                                .kind = std::get<kernels::Activation>(kind_), .x = in, .y = out});
}

void FfnStep::backward(const LayerContext& c, Matrix in, Matrix dout, Matrix din) const {
  const int64_t f = dout.cols;
  if (const auto* gate = std::get_if<kernels::Gate>(&kind_))
    c.backend.run(c.stream, kernels::GatedBackward{.kind = *gate,
                                                   .gate = in.columns(0, f),
                                                   .up = in.columns(f, f),
                                                   .dy = dout,
                                                   .dgate = din.columns(0, f),
                                                   .dup = din.columns(f, f),
                                                   .limit = limit_,
                                                   .alpha = kClampedAlpha});
  else
    c.backend.run(c.stream,
                  kernels::ActivationBackward{
                      .kind = std::get<kernels::Activation>(kind_), .x = in, .dy = dout, .dx = din});
}

}  // namespace trainctl
