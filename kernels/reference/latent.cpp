#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

void compute(const ExpandKeys& op) {
  const int64_t d = op.head_dim(), own = op.own_dim(), width = op.value_dim();
  for (int64_t m = 0; m < op.k.rows; ++m)
    for (int64_t h = 0; h < op.heads; ++h) {
      const int64_t from = h * (own + width);
      for (int64_t c = 0; c < d; ++c) {
        put(op.k, m, h * d + c, c < own ? get(op.kv, m, from + c) : get(op.shared, m, c - own));
        put(op.v, m, h * d + c, c < width ? get(op.kv, m, from + own + c) : 0);
      }
    }
}

void compute(const ExpandKeysBackward& op) {
  const int64_t d = op.head_dim(), own = op.own_dim(), width = op.value_dim();
  for (int64_t m = 0; m < op.k.rows; ++m) {
    for (int64_t h = 0; h < op.heads; ++h) {
      const int64_t to = h * (own + width);
      for (int64_t c = 0; c < own; ++c) put(op.kv, m, to + c, get(op.k, m, h * d + c));
      for (int64_t c = 0; c < width; ++c) put(op.kv, m, to + own + c, get(op.v, m, h * d + c));
    }
    for (int64_t c = 0; c < op.shared.cols; ++c) {
      double sum = 0;
      for (int64_t h = 0; h < op.heads; ++h) sum += get(op.k, m, h * d + own + c);
      put(op.shared, m, c, sum);
    }
  }
}

}  // namespace trainctl::kernels::reference
