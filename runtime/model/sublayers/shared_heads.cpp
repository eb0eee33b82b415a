#include "runtime/model/sublayers/shared_heads.h"

namespace trainctl {

using kernels::Matrix;

void SharedHeads::declare(std::vector<TensorDeclaration>& list, const LayerShape& s, int64_t ranks,
                          int64_t head_dim, const Numbers& n) {
  if (ranks == 1) return;
  list.push_back({n.heads, Life::activation, s.compute, s.rows, 2 * head_dim});
  list.push_back({n.gradients, Life::scratch, s.compute, s.rows, 2 * head_dim});
  for (const int number : {n.sent, n.received})
    list.push_back({number, Life::scratch, s.compute, ranks * s.rows, 2 * head_dim / ranks});
}

Matrix SharedHeads::part(const Matrix& all, int64_t neighbour, int which) const {
  const int64_t rows = all.rows / ranks_, channels = dim_ / ranks_;
  return all.row_range(neighbour * rows, rows).columns(which * channels, channels);
}

void SharedHeads::gather(const LayerContext& c, const Tensors& t, Matrix k, Matrix v) const {
  const Matrix all = t[size_t(n_.received)];
  const Matrix own[] = {k, v}, whole[] = {this->k(t), this->v(t)};
  for (int i = 0; i < 2; ++i)
    c.backend.run(c.stream, kernels::Copy{.src = own[i], .dst = part(all, c.tp.rank() % ranks_, i)});
  c.tp.gather_near(all, int(ranks_));
  const int64_t channels = dim_ / ranks_;
  for (int64_t r = 0; r < ranks_; ++r)
    for (int i = 0; i < 2; ++i)
      c.backend.run(c.stream,
                    kernels::Copy{.src = part(all, r, i), .dst = whole[i].columns(r * channels, channels)});
}

void SharedHeads::sum(const LayerContext& c, const Tensors& t, Matrix dk, Matrix dv) const {
  const Matrix sent = t[size_t(n_.sent)];
  const Matrix whole[] = {this->dk(t), this->dv(t)}, own[] = {dk, dv};
  const int64_t channels = dim_ / ranks_;
  for (int64_t r = 0; r < ranks_; ++r)
    for (int i = 0; i < 2; ++i)
      c.backend.run(c.stream,
                    kernels::Copy{.src = whole[i].columns(r * channels, channels), .dst = part(sent, r, i)});
  c.tp.add_near(sent, t[size_t(n_.received)], int(ranks_));
  for (int i = 0; i < 2; ++i)
    c.backend.run(c.stream, kernels::Copy{.src = part(sent, c.tp.rank() % ranks_, i), .dst = own[i]});
}

}  // namespace trainctl
