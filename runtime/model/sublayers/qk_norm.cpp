#include "runtime/model/sublayers/qk_norm.h"

namespace trainctl {

using kernels::Matrix;

void QkNorms::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, QkNorm kind,
                      const Sizes& sizes, const Numbers& n) {
  const bool by_head = kind == QkNorm::head;
  const int64_t groups = by_head ? sizes.q / sizes.head_dim : 1;
  // The input half of backward reads them: making them again would have to come before it.
  list.push_back({n.out, Life::activation, s.compute, s.rows, sizes.q + sizes.k});
  list.push_back({n.sums, Life::activation, DType::f32, 2 * s.rows, groups});
  list.push_back({n.dots, Life::scratch, DType::f32, 2 * s.rows, groups});
  declare_waiting(list, n.q_gradient, by_head ? sizes.head_dim : sizes.q);
  declare_waiting(list, n.k_gradient, by_head ? sizes.head_dim : sizes.k);
}

float* QkNorms::half(const Tensors& t, int all, int i) {
  const Matrix& m = t[size_t(all)];
  return m.row_range(i * (m.rows / 2), m.rows / 2).as<float>();
}

void QkNorms::add_over_ranks(const LayerContext& c, Matrix sums) const {
  if (kind_ == QkNorm::projection) c.tp.add(sums);
}

void QkNorms::forward(const LayerContext& c, Tensors& t, Matrix q, Matrix k) const {
  const Matrix in[] = {q, k}, out[] = {this->q(t), this->k(t)};
  for (int i = 0; i < 2; ++i)
    c.backend.run(c.stream,
                  kernels::GroupNormSums{
                      .x = in[i], .group = group(i), .count = count(i), .sums = half(t, n_.sums, i)});
  add_over_ranks(c, t[size_t(n_.sums)]);
  for (int i = 0; i < 2; ++i)
    c.backend.run(c.stream, kernels::GroupNormApply{.x = in[i],
                                                    .group = group(i),
                                                    .count = count(i),
                                                    .sums = half(t, n_.sums, i),
                                                    .weight = vector_weight(c.params, weights_[i]),
                                                    .weight_offset = plan_.weight_offset,
                                                    .eps = plan_.eps,
                                                    .y = out[i]});
}

void QkNorms::backward_input(const LayerContext& c, Tensors& t, Matrix q, Matrix k, Matrix dq, Matrix dk,
                             LanePlace at) const {
  const Matrix x[] = {q, k}, d[] = {dq, dk};
  const int waiting[] = {n_.q_gradient, n_.k_gradient};
  for (int i = 0; i < 2; ++i)
    c.backend.run(c.stream, kernels::GroupNormDots{.dy = d[i],
                                                   .x = x[i],
                                                   .group = group(i),
                                                   .count = count(i),
                                                   .weight = vector_weight(c.params, weights_[i]),
                                                   .weight_offset = plan_.weight_offset,
                                                   .dots = half(t, n_.dots, i)});
  add_over_ranks(c, t[size_t(n_.dots)]);
  for (int i = 0; i < 2; ++i)
    c.backend.run(c.stream,
                  kernels::GroupNormBackward{.dy = d[i],
                                             .x = x[i],
                                             .group = group(i),
                                             .count = count(i),
                                             .sums = half(t, n_.sums, i),
                                             .dots = half(t, n_.dots, i),
                                             .weight = vector_weight(c.params, weights_[i]),
                                             .weight_offset = plan_.weight_offset,
                                             .eps = plan_.eps,
                                             .dx = d[i],
                                             .dweight = early_gradient(c, t, weights_[i], waiting[i], at),
                                             .accumulate = accumulates_early(c, at)});
}

void QkNorms::backward_weight(const LayerContext& c, Tensors& t, LanePlace at) const {
  add_waiting(c, t, weights_[0], n_.q_gradient, at);
  add_waiting(c, t, weights_[1], n_.k_gradient, at);
}

}  // namespace trainctl
