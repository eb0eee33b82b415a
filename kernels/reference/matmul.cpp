#include "kernels/reference/compute.h"
#include "kernels/plain_weight.h"

namespace trainctl::kernels::reference {

void compute(const Pack& op) { PlainWeight::pack(op); }

void compute(const LinearForward& op) {
  const Matrix& w = PlainWeight::of(op.w);
  if (op.bias) check_f32_row(op.bias, w.rows);
  for (int64_t m = 0; m < op.x.rows; ++m) {
    for (int64_t n = 0; n < w.rows; ++n) {
      double sum = op.bias ? get(op.bias, 0, n) : 0.0f;
      for (int64_t k = 0; k < w.cols; ++k) {
        sum += double(get(op.x, m, k)) * get(w, n, k);
      }
      put(op.y, m, n, sum);
    }
  }
}

void compute(const LinearBackwardInput& op) {
  const Matrix& w = PlainWeight::of(op.w);
  std::vector<double> row(w.cols);
  for (int64_t m = 0; m < op.dy.rows; ++m) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t n = 0; n < w.rows; ++n) {
      for (int64_t k = 0; k < w.cols; ++k) {
        row[k] += double(get(op.dy, m, n)) * get(w, n, k);
      }
    }
    for (int64_t k = 0; k < w.cols; ++k) {
      put(op.dx, m, k, row[k]);
    }
  }
}

void compute(const LinearBackwardWeight& op) {
  std::vector<double> row(op.dw.cols);
  for (int64_t n = 0; n < op.dw.rows; ++n) {
    std::fill(row.begin(), row.end(), 0.0);
    double bias_sum = 0;
    for (int64_t m = 0; m < op.dy.rows; ++m) {
      const double g = get(op.dy, m, n);
      bias_sum += g;
      for (int64_t k = 0; k < op.dw.cols; ++k) {
        row[k] += g * get(op.x, m, k);
      }
    }
    for (int64_t k = 0; k < op.dw.cols; ++k) {
      put(op.dw, n, k, row[k] + (op.accumulate ? get(op.dw, n, k) : 0.0f));
    }
    if (op.dbias) {
      put(op.dbias, 0, n, bias_sum + (op.accumulate ? get(op.dbias, 0, n) : 0.0f));
    }
  }
}

}  // namespace trainctl::kernels::reference
