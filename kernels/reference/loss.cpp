#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

void compute(const CrossEntropyStats& op) {
  for (int64_t m = 0; m < op.logits.rows; ++m) {
    float max = -INFINITY;
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      max = std::max(max, get(op.logits, m, c));
    }
    double sum = 0;
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      sum += std::exp(double(get(op.logits, m, c)) - max);
    }
    const int64_t target = op.targets[m] - op.vocab_begin;
    op.stats[3 * m] = max;
    op.stats[3 * m + 1] = float(sum);
    op.stats[3 * m + 2] = target >= 0 && target < op.logits.cols ? get(op.logits, m, target) : 0.0f;
  }
}

void compute(const CrossEntropyCombine& op) {
  for (int64_t row = 0; row < op.m; ++row) {
    double max = -INFINITY, sum = 0, target = 0;
    for (int part = 0; part < op.parts; ++part) {
      max = std::max(max, double(op.stats[3 * (part * op.m + row)]));
    }
    for (int part = 0; part < op.parts; ++part) {
      const float* s = op.stats + 3 * (part * op.m + row);
      sum += s[1] * std::exp(s[0] - max);
      target += s[2];
    }
    op.lse[row] = float(max + std::log(sum));
    op.loss[row] = float(max + std::log(sum) - target);
  }
}

void compute(const CrossEntropyBackward& op) {
  for (int64_t m = 0; m < op.logits.rows; ++m) {
    const int64_t target = op.targets[m] - op.vocab_begin;
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      const double p = std::exp(double(get(op.logits, m, c)) - op.lse[m]);
      put(op.logits, m, c, (p - (c == target ? 1.0 : 0.0)) * op.scale);
    }
  }
}

}  // namespace trainctl::kernels::reference
