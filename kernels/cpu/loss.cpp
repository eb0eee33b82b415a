#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {
int64_t rows_per_task(const Matrix& logits) { return std::max<int64_t>(1, 65536 / logits.cols); }
}  // namespace

void CpuBackend::compute(const FormLogits& op) { over_elements(op, kernels_.form_logits); }

void CpuBackend::compute(const CrossEntropyStats& op) {
  over_rows(op.logits.rows, rows_per_task(op.logits), [&](int64_t r, int64_t n) {
    kernels_.cross_entropy_stats(
        {op.logits.row_range(r, n), op.targets + r, op.vocab_begin, op.stats + 3 * r, op.form});
  });
}

void CpuBackend::compute(const CrossEntropyCombine& op) {
  for (int64_t row = 0; row < op.m; ++row) {
    float max = op.stats[3 * row];
    for (int part = 1; part < op.parts; ++part) {
      max = std::max(max, op.stats[3 * (part * op.m + row)]);
    }
    double sum = 0, target = 0;
    for (int part = 0; part < op.parts; ++part) {
      const float* s = op.stats + 3 * (part * op.m + row);
      sum += s[1] * std::exp(double(s[0]) - max);
      target += s[2];
    }
    const double log_sum = double(max) + std::log(sum);
    op.lse[row] = float(log_sum);
    double loss = log_sum - target;
    if (op.z_loss != 0) loss += op.z_loss * log_sum * log_sum;
    if (op.weights != nullptr) loss *= op.weights[row];
    op.loss[row] = op.targets != nullptr && op.targets[row] < 0 ? 0.0f : float(loss);
  }
}

void CpuBackend::compute(const CrossEntropyBackward& op) {
  over_rows(op.logits.rows, rows_per_task(op.logits), [&](int64_t r, int64_t n) {
    CrossEntropyBackward rows = op;
    rows.logits = op.logits.row_range(r, n);
    rows.targets += r, rows.lse += r;
    if (op.weights != nullptr) rows.weights += r;
    kernels_.cross_entropy_backward(rows);
  });
}

}  // namespace trainctl::kernels::cpu
