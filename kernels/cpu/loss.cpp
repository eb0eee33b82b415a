#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {
int64_t rows_per_task(const Matrix& logits) { return std::max<int64_t>(1, 65536 / logits.cols); }
}  // namespace

void CpuBackend::cross_entropy_stats(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin,
                                     float* stats) {
  ENSURE(is_activation(logits.dtype) && logits.cols > 0);
  over_rows(logits.rows, rows_per_task(logits), [&](int64_t r, int64_t n) {
    kernels_.cross_entropy_stats(logits.row_range(r, n), targets + r, vocab_begin, stats + 3 * r);
  });
}

void CpuBackend::cross_entropy_combine(Stream&, const float* stats, int parts, int64_t m, float* lse, float* loss) {
  for (int64_t row = 0; row < m; ++row) {
    float max = stats[3 * row];
    for (int part = 1; part < parts; ++part) {
      max = std::max(max, stats[3 * (part * m + row)]);
    }
    double sum = 0, target = 0;
    for (int part = 0; part < parts; ++part) {
      const float* s = stats + 3 * (part * m + row);
      sum += s[1] * std::exp(double(s[0]) - max);
      target += s[2];
    }
    const double log_sum = double(max) + std::log(sum);
    lse[row] = float(log_sum);
    loss[row] = float(log_sum - target);
  }
}

void CpuBackend::cross_entropy_backward(Stream&, Matrix logits, const int32_t* targets, int64_t vocab_begin,
                                        const float* lse, float scale) {
  ENSURE(is_activation(logits.dtype) && logits.cols > 0);
  over_rows(logits.rows, rows_per_task(logits), [&](int64_t r, int64_t n) {
    kernels_.cross_entropy_backward(logits.row_range(r, n), targets + r, vocab_begin, lse + r, scale);
  });
}

}  // namespace trainctl::kernels::cpu
