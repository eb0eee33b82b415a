#include "runtime/model/sublayers/sublayer_parts.h"

#include <algorithm>

namespace trainctl {

using kernels::Matrix;

namespace {

/// Joined uses as one matrix of `rows` rows.
Matrix joined(Matrix first, int64_t rows) {
  return kernels::matrix(first.data, first.dtype, rows, first.cols);
}

}  // namespace

Matrix vector_weight(const parallel::ShardedParams& params, int use) {
  if (use < 0) return {};
  const Matrix m = params.weight(use);
  return kernels::vector(m.data, m.dtype, m.count());
}
Matrix vector_gradient(const parallel::ShardedParams& params, int use, int lane) {
  if (use < 0) return {};
  const Matrix m = params.gradient(use, lane);
  return kernels::vector(m.data, m.dtype, m.count());
}

void accumulate(const LayerContext& c, Matrix src, Matrix dst, bool overwrite) {
  if (!src || !dst) return;
  if (overwrite)
    c.backend.run(c.stream, kernels::Copy{.src = src, .dst = dst});
  else
    c.backend.run(c.stream, kernels::Add{.src = src, .dst = dst});
}

bool declares(const std::vector<ParamDeclaration>& parameters, int place) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const ParamDeclaration& d) { return d.place == place; });
}

void EntryNorm::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n) {
  list.push_back({n.out, Life::cheap, s.compute, s.rows, s.hidden});
  list.push_back({n.stats, Life::activation, DType::f32, s.local_rows, 2});
  list.push_back({n.weight_gradient, Life::late_gradient, DType::f32, 1, s.hidden});
  list.push_back({n.bias_gradient, Life::late_gradient, DType::f32, 1, s.hidden});
}

void EntryNorm::forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) const {
  const Matrix out = t[size_t(n_.out)], y = c.tp.cuts_rows() ? c.scratch.normed : out;
  c.backend.run(c.stream, kernels::NormForward{.kind = plan_.kind, .x = delta ? previous : t[kInput],
                                               .delta = delta, .weight = vector_weight(c.params, weight_),
                                               .bias = vector_weight(c.params, bias_),
                                               .eps = plan_.eps, .sum = t[kInput], .y = y,
                                               .stats = t[size_t(n_.stats)].as<float>()});
  c.tp.enter(y, out);
}

void EntryNorm::apply(const LayerContext& c, Tensors& t) const {
  const Matrix out = t[size_t(n_.out)], y = c.tp.cuts_rows() ? c.scratch.normed : out;
  c.backend.run(c.stream, kernels::NormApply{.kind = plan_.kind, .x = t[kInput],
                                             .stats = t[size_t(n_.stats)].as<float>(),
                                             .weight = vector_weight(c.params, weight_),
                                             .bias = vector_weight(c.params, bias_), .y = y});
  c.tp.enter(y, out);
}

void EntryNorm::backward_input(const LayerContext& c, Tensors& t, Matrix dy, Matrix dresidual, Matrix din,
                               LanePlace at) const {
  // Until a later weight half runs, the lane's own gradients may still hold those of an earlier lane.
  const auto gradient = [&](int use, int waiting) {
    return c.weight_half_follows ? vector_gradient(c.params, use, at.lane)
           : use < 0             ? Matrix{}
                                 : t[size_t(waiting)];
  };
  c.backend.run(c.stream, kernels::NormBackward{.kind = plan_.kind, .dy = dy, .x = t[kInput],
                                                .weight = vector_weight(c.params, weight_),
                                                .stats = t[size_t(n_.stats)].as<float>(),
                                                .dresidual = dresidual, .dx = din,
                                                .dweight = gradient(weight_, n_.weight_gradient),
                                                .dbias = gradient(bias_, n_.bias_gradient),
                                                .accumulate = c.weight_half_follows && !at.first});
}

void EntryNorm::backward_weight(const LayerContext& c, Tensors& t, LanePlace at) const {
  if (c.weight_half_follows) return;   // the input half made the gradients
  accumulate(c, t[size_t(n_.weight_gradient)], vector_gradient(c.params, weight_, at.lane), at.first);
  accumulate(c, t[size_t(n_.bias_gradient)], vector_gradient(c.params, bias_, at.lane), at.first);
}

void Linear::declare_bias(std::vector<TensorDeclaration>& list, const LayerShape& s, int bias, int64_t rows) {
  if (s.compute != DType::f32)
    list.push_back({bias, Life::layer, s.compute, 1, rows});   // f32 ones are as products take them
}

Linear::Linear(const LayerContext& c, int weight, int bias, int64_t rows, int64_t cols,
               const Matrix& bias_memory)
    : weight_(weight), bias_(bias), rows_(rows), packed_(c.backend.make_packed(rows, cols, c.shape.compute)) {
  if (bias >= 0 && c.backend.bias_dtype(c.shape.compute) == c.shape.compute) converted_ = bias_memory;
}

void Linear::pack(const LayerContext& c) {
  c.backend.run(c.stream, kernels::Pack{.w = joined(c.params.weight(weight_), rows_),
                                        .packed = packed_.get()});
  if (converted_)
    c.backend.run(c.stream, kernels::Copy{.src = vector_weight(c.params, bias_), .dst = converted_});
}

Matrix Linear::bias(const LayerContext& c) const {
  return converted_ ? converted_ : vector_weight(c.params, bias_);
}
Matrix Linear::bias_once(const LayerContext& c) const { return c.tp.rank() == 0 ? bias(c) : Matrix{}; }

void Linear::backward_weight(const LayerContext& c, Matrix dy, Matrix x, LanePlace at) const {
  c.backend.run(c.stream, kernels::LinearBackwardWeight{.dy = dy, .x = x,
      .dw = joined(c.params.gradient(weight_, at.lane), rows_),
      .dbias = vector_gradient(c.params, bias_, at.lane), .accumulate = !at.first});
}

void keep_output_gradient(const LayerContext& c, Tensors& t, Matrix dout) {
  if (c.tp.cuts_rows())
    c.tp.enter(dout, t[kOutputGradient]);
  else if (c.weight_half_follows)
    t[kOutputGradient] = dout;
  else if (dout.data != t[kOutputGradient].data)
    c.backend.run(c.stream, kernels::Copy{.src = dout, .dst = t[kOutputGradient]});
}

}  // namespace trainctl
