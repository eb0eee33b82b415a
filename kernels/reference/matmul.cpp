#include "kernels/reference/reference_backend.h"
#include "kernels/plain_weight.h"

namespace trainctl::kernels::reference {

std::unique_ptr<PackedWeight> ReferenceBackend::make_packed(int64_t n, int64_t k, DType dtype) { return PlainWeight::make(n, k, dtype); }

void ReferenceBackend::pack(Stream&, Matrix w, PackedWeight& packed) { PlainWeight::pack(w, packed); }

void ReferenceBackend::linear_forward(Stream&, Matrix x, const PackedWeight& packed, Matrix bias, Matrix y) {
  const Matrix& w = PlainWeight::of(packed);
  check_product(x, w.cols, y, w.rows, w.dtype);
  check_f32_row(bias, w.rows, true);
  for (int64_t m = 0; m < x.rows; ++m) {
    for (int64_t n = 0; n < w.rows; ++n) {
      double sum = bias ? get(bias, 0, n) : 0.0f;
      for (int64_t k = 0; k < w.cols; ++k) {
        sum += double(get(x, m, k)) * get(w, n, k);
      }
      put(y, m, n, sum);
    }
  }
}

void ReferenceBackend::linear_backward_input(Stream&, Matrix dy, const PackedWeight& packed, Matrix dx) {
  const Matrix& w = PlainWeight::of(packed);
  check_product(dy, w.rows, dx, w.cols, w.dtype);
  std::vector<double> row(w.cols);
  for (int64_t m = 0; m < dy.rows; ++m) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t n = 0; n < w.rows; ++n) {
      for (int64_t k = 0; k < w.cols; ++k) {
        row[k] += double(get(dy, m, n)) * get(w, n, k);
      }
    }
    for (int64_t k = 0; k < w.cols; ++k) {
      put(dx, m, k, row[k]);
    }
  }
}

void ReferenceBackend::linear_backward_weight(Stream&, Matrix dy, Matrix x, Matrix dw, Matrix dbias, bool accumulate) {
  check_weight_gradient(dy, x, dw, dbias);
  std::vector<double> row(dw.cols);
  for (int64_t n = 0; n < dw.rows; ++n) {
    std::fill(row.begin(), row.end(), 0.0);
    double bias_sum = 0;
    for (int64_t m = 0; m < dy.rows; ++m) {
      const double g = get(dy, m, n);
      bias_sum += g;
      for (int64_t k = 0; k < dw.cols; ++k) {
        row[k] += g * get(x, m, k);
      }
    }
    for (int64_t k = 0; k < dw.cols; ++k) {
      put(dw, n, k, row[k] + (accumulate ? get(dw, n, k) : 0.0f));
    }
    if (dbias) {
      put(dbias, 0, n, bias_sum + (accumulate ? get(dbias, 0, n) : 0.0f));
    }
  }
}

}  // namespace trainctl::kernels::reference
