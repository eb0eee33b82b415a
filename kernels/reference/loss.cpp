#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels::reference {

void ReferenceBackend::cross_entropy_stats(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin,
                                           float* stats) {
  ENSURE(is_activation(logits.dtype) && logits.cols > 0);
  for (int64_t m = 0; m < logits.rows; ++m) {
    float max = -INFINITY;
    for (int64_t c = 0; c < logits.cols; ++c) {
      max = std::max(max, get(logits, m, c));
    }
    double sum = 0;
    for (int64_t c = 0; c < logits.cols; ++c) {
      sum += std::exp(double(get(logits, m, c)) - max);
    }
    const int64_t target = targets[m] - vocab_begin;
    stats[3 * m] = max;
    stats[3 * m + 1] = float(sum);
    stats[3 * m + 2] = target >= 0 && target < logits.cols ? get(logits, m, target) : 0.0f;
  }
}

void ReferenceBackend::cross_entropy_combine(Stream&, const float* stats, int parts, int64_t m, float* lse,
                                             float* loss) {
  for (int64_t row = 0; row < m; ++row) {
    double max = -INFINITY, sum = 0, target = 0;
    for (int part = 0; part < parts; ++part) {
      max = std::max(max, double(stats[3 * (part * m + row)]));
    }
    for (int part = 0; part < parts; ++part) {
      const float* s = stats + 3 * (part * m + row);
      sum += s[1] * std::exp(s[0] - max);
      target += s[2];
    }
    lse[row] = float(max + std::log(sum));
    loss[row] = float(max + std::log(sum) - target);
  }
}

void ReferenceBackend::cross_entropy_backward(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin,
                                              const float* lse, float scale) {
  ENSURE(is_activation(logits.dtype));
  for (int64_t m = 0; m < logits.rows; ++m) {
    const int64_t target = targets[m] - vocab_begin;
    for (int64_t c = 0; c < logits.cols; ++c) {
      const double p = std::exp(double(get(logits, m, c)) - lse[m]);
      put(logits, m, c, (p - (c == target ? 1.0 : 0.0)) * scale);
    }
  }
}

}  // namespace trainctl::kernels::reference
