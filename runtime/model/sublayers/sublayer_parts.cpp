#include "runtime/model/sublayers/sublayer_parts.h"

#include <algorithm>

namespace trainctl {

using kernels::Matrix;

namespace {

/// Joined uses as one matrix of `rows` rows.
Matrix joined(Matrix first, int64_t rows) {
  return kernels::matrix(first.data, first.dtype, rows, first.cols);
}

/// dout as the weight half will read it: entered into the cut part, or copied where something overwrites it
/// before.
void keep_output_gradient(const LayerContext& c, Tensors& t, Matrix dout) {
  if (c.tp.cuts_rows())
    c.tp.enter(dout, t[kOutputGradient]);
  else if (c.weight_half_follows)
    t[kOutputGradient] = dout;
  else if (dout.data != t[kOutputGradient].data)
    c.backend.run(c.stream, kernels::Copy{.src = dout, .dst = t[kOutputGradient]});
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

void complete_gradient(const LayerContext& c, int use, int64_t elements, int lane) {
  if (!c.params.merges_each(use)) return;
  for (; elements > 0; ++use) {
    elements -= c.params.gradient(use, lane).count();
    c.params.merge_lane(use, use + 1, lane);
  }
  ENSURE(elements == 0);
}

void accumulate(const LayerContext& c, Matrix src, Matrix dst, bool overwrite) {
  if (!src || !dst) return;
  if (overwrite)
    c.backend.run(c.stream, kernels::Copy{.src = src, .dst = dst});
  else
    c.backend.run(c.stream, kernels::Add{.src = src, .dst = dst});
}

kernels::AttentionShape widest_of(const kernels::AttentionShape& a, const kernels::AttentionShape& b) {
  return {std::max(a.batch, b.batch),       std::max(a.seq_len, b.seq_len),   std::max(a.heads, b.heads),
          std::max(a.kv_heads, b.kv_heads), std::max(a.head_dim, b.head_dim), b.scale,
          std::max(a.keys, b.keys)};
}

bool declares(const std::vector<ParamDeclaration>& parameters, int place) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const ParamDeclaration& d) { return d.place == place; });
}

void declare_waiting(std::vector<TensorDeclaration>& list, int number, int64_t size) {
  list.push_back({number, Life::late_gradient, DType::f32, 1, size});
}
Matrix early_gradient(const LayerContext& c, const Tensors& t, int use, int waiting, LanePlace at) {
  if (use < 0) return {};
  return c.weight_half_follows ? vector_gradient(c.params, use, at.lane) : t[size_t(waiting)];
}
void add_waiting(const LayerContext& c, const Tensors& t, int use, int waiting, LanePlace at) {
  if (c.weight_half_follows) return;  // the input half made the gradient
  accumulate(c, t[size_t(waiting)], vector_gradient(c.params, use, at.lane), at.first);
}

void EntryNorm::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                        const std::optional<NormPlan>& plan) {
  // Without a norm y is x itself, where a rank has all of its rows.
  if (plan || s.local_rows < s.rows) list.push_back({n.out, Life::cheap, s.compute, s.rows, s.hidden});
  if (!plan) return;
  list.push_back({n.stats, Life::activation, DType::f32, s.local_rows, 2});
  declare_waiting(list, n.weight_gradient, s.hidden);
  declare_waiting(list, n.bias_gradient, s.hidden);
}

void EntryNorm::pass_on(const LayerContext& c, Tensors& t) const {
  if (c.tp.cuts_rows())
    c.tp.enter(t[kInput], t[size_t(n_.out)]);
  else
    t[size_t(n_.out)] = t[kInput];
}

void EntryNorm::forward(const LayerContext& c, Tensors& t, Matrix previous, Matrix delta) const {
  if (!plan_) {
    if (delta) {
      if (previous.data != t[kInput].data)
        c.backend.run(c.stream, kernels::Copy{.src = previous, .dst = t[kInput]});
      c.backend.run(c.stream, kernels::Add{.src = delta, .dst = t[kInput]});
    }
    return pass_on(c, t);
  }
  const Matrix out = t[size_t(n_.out)], y = c.tp.cuts_rows() ? c.scratch.normed : out;
  c.backend.run(c.stream, kernels::NormForward{.kind = plan_->kind,
                                               .x = delta ? previous : t[kInput],
                                               .delta = delta,
                                               .weight = vector_weight(c.params, weight_),
                                               .bias = vector_weight(c.params, bias_),
                                               .eps = plan_->eps,
                                               .sum = t[kInput],
                                               .y = y,
                                               .stats = t[size_t(n_.stats)].as<float>(),
                                               .weight_offset = plan_->weight_offset});
  c.tp.enter(y, out);
}

void EntryNorm::apply(const LayerContext& c, Tensors& t) const {
  if (!plan_) return pass_on(c, t);
  const Matrix out = t[size_t(n_.out)], y = c.tp.cuts_rows() ? c.scratch.normed : out;
  c.backend.run(c.stream, kernels::NormApply{.kind = plan_->kind,
                                             .x = t[kInput],
                                             .stats = t[size_t(n_.stats)].as<float>(),
                                             .weight = vector_weight(c.params, weight_),
                                             .bias = vector_weight(c.params, bias_),
                                             .y = y,
                                             .weight_offset = plan_->weight_offset});
  c.tp.enter(y, out);
}

void EntryNorm::backward_input(const LayerContext& c, Tensors& t, Matrix dy, Matrix dresidual, Matrix din,
                               LanePlace at) const {
  if (!plan_) {
    if (din.data != dresidual.data) c.backend.run(c.stream, kernels::Copy{.src = dresidual, .dst = din});
    c.backend.run(c.stream, kernels::Add{.src = dy, .dst = din});
    return;
  }
  c.backend.run(c.stream,
                kernels::NormBackward{.kind = plan_->kind,
                                      .dy = dy,
                                      .x = t[kInput],
                                      .weight = vector_weight(c.params, weight_),
                                      .stats = t[size_t(n_.stats)].as<float>(),
                                      .dresidual = dresidual,
                                      .dx = din,
                                      .dweight = early_gradient(c, t, weight_, n_.weight_gradient, at),
                                      .dbias = early_gradient(c, t, bias_, n_.bias_gradient, at),
                                      .accumulate = accumulates_early(c, at),
                                      .weight_offset = plan_->weight_offset});
}

void EntryNorm::backward_weight(const LayerContext& c, Tensors& t, LanePlace at) const {
  add_waiting(c, t, weight_, n_.weight_gradient, at);
  add_waiting(c, t, bias_, n_.bias_gradient, at);
}

void Exit::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                   const std::optional<NormPlan>& plan) {
  if (!plan) return;
  list.push_back({n.in, Life::activation, s.compute, s.local_rows, s.hidden});
  list.push_back({n.stats, Life::activation, DType::f32, s.local_rows, 2});
  list.push_back({n.gradient, Life::gradient, s.compute, s.rows, s.hidden});
  declare_waiting(list, n.weight_gradient, s.hidden);
  declare_waiting(list, n.bias_gradient, s.hidden);
}

Matrix Exit::part(const LayerContext& c, const Tensors& t) const {
  return plan_ && c.tp.size() == 1 ? t[size_t(n_.in)] : c.scratch.partial;
}

Matrix Exit::forward(const LayerContext& c, Tensors& t) const {
  if (!plan_) return c.tp.leave(c.scratch.partial, c.scratch.local);
  const Matrix in = t[size_t(n_.in)], sum = c.tp.leave(part(c, t), in);
  if (sum.data != in.data) c.backend.run(c.stream, kernels::Copy{.src = sum, .dst = in});
  c.backend.run(c.stream, kernels::NormForward{.kind = plan_->kind,
                                               .x = in,
                                               .weight = vector_weight(c.params, weight_),
                                               .bias = vector_weight(c.params, bias_),
                                               .eps = plan_->eps,
                                               .y = c.scratch.local,
                                               .stats = t[size_t(n_.stats)].as<float>(),
                                               .weight_offset = plan_->weight_offset});
  return c.scratch.local;
}

void Exit::backward_input(const LayerContext& c, Tensors& t, Matrix dout, LanePlace at) const {
  if (!plan_) return keep_output_gradient(c, t, dout);
  const Matrix gradient = t[size_t(n_.gradient)], dx = c.tp.cuts_rows() ? c.scratch.normed : gradient;
  c.backend.run(c.stream,
                kernels::NormBackward{.kind = plan_->kind,
                                      .dy = dout,
                                      .x = t[size_t(n_.in)],
                                      .weight = vector_weight(c.params, weight_),
                                      .stats = t[size_t(n_.stats)].as<float>(),
                                      .dx = dx,
                                      .dweight = early_gradient(c, t, weight_, n_.weight_gradient, at),
                                      .dbias = early_gradient(c, t, bias_, n_.bias_gradient, at),
                                      .accumulate = accumulates_early(c, at),
                                      .weight_offset = plan_->weight_offset});
  c.tp.enter(dx, gradient);
}

void Exit::backward_weight(const LayerContext& c, Tensors& t, LanePlace at) const {
  if (!plan_) return;
  add_waiting(c, t, weight_, n_.weight_gradient, at);
  add_waiting(c, t, bias_, n_.bias_gradient, at);
}

void Linear::declare_bias(std::vector<TensorDeclaration>& list, const LayerShape& s, int bias, int64_t rows) {
  if (s.compute != DType::f32)
    list.push_back({bias, Life::layer, s.compute, 1, rows});   // f32 ones are as products take them
}

Linear::Linear(const LayerContext& c, int weight, int bias, int64_t rows, int64_t cols,
               const Matrix& bias_memory, const ProductFormat& format)
    : weight_(weight),
      bias_(bias),
      rows_(rows),
      format_(format),
      packed_(c.backend.make_packed(rows, cols, c.shape.compute)) {
  if (bias >= 0 && c.backend.bias_dtype(c.shape.compute) == c.shape.compute) converted_ = bias_memory;
}

void Linear::pack(const LayerContext& c) {
  const Matrix w = joined(c.params.weight(weight_), rows_);
  const Fp8Scaling& scaling = scaling_of(format_.recipe);
  if (format_.recipe != Fp8Recipe::none && !scaling.keeps_weights()) {
    kernels::QuantizeWeight op{.w = w, .groups = kernels::Fp8Groups::whole, .parts = format_.parts};
    if (scaling.group > 0) op.groups = kernels::Fp8Groups::blocks, op.group = scaling.group;
    c.backend.run(c.stream, op);
  }
  c.backend.run(c.stream, kernels::Pack{.w = w, .packed = packed_.get()});
  if (converted_) c.backend.run(c.stream, kernels::Copy{.src = joined_bias(c), .dst = converted_});
}

const kernels::PackedWeight& Linear::made_for_product(const LayerContext& c, const Tensors& t,
                                                      kernels::Fp8Groups groups) const {
  const Fp8Scaling& scaling = scaling_of(format_.recipe);
  if (!scaling.keeps_weights()) return *packed_;
  const Matrix w = joined(c.params.weight(weight_), rows_), room = t[kFp8Weight];
  ENSURE(w.count() <= room.count(), "room for {} of {} numbers of a weight", room.count(), w.count());
  const Matrix to = kernels::matrix(room.data, w.dtype, w.rows, w.cols);
  if (scaling.four_bits)
    c.backend.run(
        c.stream,
        kernels::QuantizeFp4{.x = w, .y = to, .groups = kernels::Fp8Groups::blocks, .parts = format_.parts});
  else
    c.backend.run(c.stream,
                  kernels::QuantizeWeight{
                      .w = w, .groups = groups, .parts = format_.parts, .to = to, .group = scaling.group});
  c.backend.run(c.stream, kernels::Pack{.w = to, .packed = packed_.get()});
  return *packed_;
}

const kernels::PackedWeight& Linear::weight(const LayerContext& c, const Tensors& t) const {
  return made_for_product(c, t, kernels::Fp8Groups::rows);
}

const kernels::PackedWeight& Linear::weight_of_gradient(const LayerContext& c, const Tensors& t) const {
  return made_for_product(c, t, kernels::Fp8Groups::columns);
}

Matrix Linear::joined_bias(const LayerContext& c) const {
  if (bias_ < 0) return {};
  const Matrix first = c.params.weight(bias_);
  return kernels::vector(first.data, first.dtype, rows_);
}
Matrix Linear::bias(const LayerContext& c) const { return converted_ ? converted_ : joined_bias(c); }
Matrix Linear::bias_once(const LayerContext& c) const { return c.tp.rank() == 0 ? bias(c) : Matrix{}; }

Matrix Linear::gradient(const LayerContext& c, LanePlace at) const {
  return joined(c.params.gradient(weight_, at.lane), rows_);
}

void Linear::complete_gradient(const LayerContext& c, int lane) const {
  trainctl::complete_gradient(c, weight_, rows_ * c.params.gradient(weight_, lane).cols, lane);
}

/// Tensor ranks draw for their own columns, or alike for what all of them have.
kernels::Fp4Noise Linear::noise(const LayerContext& c, const Operand& operand,
                                const RowsOfExperts& experts) const {
  if (!operand.is_gradient) return {};
  const bool is_cut = c.params.uses()[size_t(weight_)].layout.cut == parallel::Cut::rows;
  const int columns_of = is_cut ? c.tp.rank() : 0;
  const uint64_t product =
      c.noise[size_t(weight_)] + uint64_t(2 * columns_of + (operand.groups == kernels::Fp8Groups::columns));
  return {.exists = true,
          .tensor = c.rows.tensor(product),
          .place = experts.offsets ? experts.place : c.rows.of_block(c.shape.cut, c.context_rank(), 0)};
}

Matrix Linear::quantized(const LayerContext& c, const Operand& operand, const RowsOfExperts& experts,
                         Matrix room) const {
  const Matrix x = operand.x;
  if (format_.recipe == Fp8Recipe::none) return x;
  const int64_t stride = kernels::spread_stride(x.dtype, x.cols);
  ENSURE(x.rows * stride <= room.count(), "room for {} of {} values", room.count(), x.rows * stride);
  const Matrix y = kernels::matrix(room.data, x.dtype, x.rows, stride).columns(0, x.cols);
  const Fp8Scaling& scaling = scaling_of(format_.recipe);
  if (scaling.four_bits) {
    kernels::QuantizeFp4 op{.x = x,
                            .y = y,
                            .groups = operand.groups,
                            .offsets = experts.offsets,
                            .first_expert = experts.first_expert,
                            .noise = noise(c, operand, experts)};
    if (operand.groups == kernels::Fp8Groups::columns) op.mixes = c.hadamard_signs;
    c.backend.run(c.stream, op);
    return y;
  }
  kernels::Quantize op{.x = x,
                       .y = y,
                       .format = operand.is_gradient ? kernels::Fp8(format_.gradients) : kernels::Fp8::e4m3,
                       .groups = kernels::Fp8Groups::whole,
                       .offsets = experts.offsets};
  if (scaling.group > 0) op.groups = operand.groups, op.group = scaling.group;
  c.backend.run(c.stream, op);
  return y;
}

Matrix Linear::seen(const LayerContext& c, const Tensors& t, Matrix x, const RowsOfExperts& experts) const {
  return quantized(c, {x, kernels::Fp8Groups::rows}, experts, t[kFp8Left]);
}

Matrix Linear::seen_gradient(const LayerContext& c, const Tensors& t, Matrix dy,
                             const RowsOfExperts& experts) const {
  return quantized(c, {dy, kernels::Fp8Groups::rows, true}, experts, t[kFp8Left]);
}

std::pair<Matrix, Matrix> Linear::seen_by_weight(const LayerContext& c, const Tensors& t, Matrix dy, Matrix x,
                                                 const RowsOfExperts& experts) const {
  return {quantized(c, {dy, kernels::Fp8Groups::columns, true}, experts, t[kFp8Left]),
          quantized(c, {x, kernels::Fp8Groups::columns}, experts, t[kFp8Right])};
}

void Linear::backward_weight(const LayerContext& c, const Tensors& t, Matrix dy, Matrix x,
                             LanePlace at) const {
  const auto [seen_dy, seen_x] = seen_by_weight(c, t, dy, x);
  c.backend.run(c.stream, kernels::LinearBackwardWeight{
                              .dy = seen_dy,
                              .x = seen_x,
                              .dw = gradient(c, at),
                              .dbias = bias_ < 0 ? Matrix{}
                                                 : kernels::vector(c.params.gradient(bias_, at.lane).data,
                                                                   DType::f32, rows_),
                              .accumulate = !at.first});
}

}  // namespace trainctl
