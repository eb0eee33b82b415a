#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels::reference {

void ReferenceBackend::norm_forward(Stream& stream, NormKind kind, Matrix x, Matrix delta, Matrix weight, Matrix bias,
                                    float eps, Matrix sum, Matrix y, float* stats) {
  check_norm(kind, x, y, weight, bias);
  Matrix source = x;
  if (delta) {
    check_same(x, delta);
    check_same(x, sum);
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t c = 0; c < x.cols; ++c) {
        put(sum, r, c, get(x, r, c) + get(delta, r, c));
      }
    }
    source = sum;
  }
  for (int64_t r = 0; r < x.rows; ++r) {
    double mean = 0;
    if (kind == NormKind::layernorm) {
      for (int64_t c = 0; c < x.cols; ++c) {
        mean += get(source, r, c);
      }
      mean /= double(x.cols);
    }
    double variance = 0;
    for (int64_t c = 0; c < x.cols; ++c) {
      const double d = get(source, r, c) - mean;
      variance += d * d;
    }
    stats[2 * r] = float(mean);
    stats[2 * r + 1] = float(1.0 / std::sqrt(variance / double(x.cols) + eps));
  }
  norm_apply(stream, kind, source, stats, weight, bias, y);
}

void ReferenceBackend::norm_apply(Stream&, NormKind kind, Matrix x, const float* stats, Matrix weight, Matrix bias,
                                  Matrix y) {
  check_norm(kind, x, y, weight, bias);
  for (int64_t r = 0; r < x.rows; ++r) {
    const double mean = stats[2 * r], rstd = stats[2 * r + 1];
    for (int64_t c = 0; c < x.cols; ++c) {
      put(y, r, c, (get(x, r, c) - mean) * rstd * get(weight, 0, c) + (bias ? get(bias, 0, c) : 0.0f));
    }
  }
}

void ReferenceBackend::norm_backward(Stream&, NormKind kind, Matrix dy, Matrix x, Matrix weight, const float* stats,
                                     Matrix dresidual, Matrix dx, Matrix dweight, Matrix dbias, bool accumulate) {
  check_norm(kind, x, dx, weight, dbias);
  check_same(x, dy);
  check_f32_row(dweight, x.cols, false);
  const int64_t c_count = x.cols;
  std::vector<double> weight_sum(c_count), bias_sum(c_count);
  for (int64_t r = 0; r < x.rows; ++r) {
    const double mean = stats[2 * r], rstd = stats[2 * r + 1];
    double sum_g = 0, sum_gx = 0;  // over c of g = dy * weight and of g * xhat
    for (int64_t c = 0; c < c_count; ++c) {
      const double xhat = (get(x, r, c) - mean) * rstd;
      const double g = double(get(dy, r, c)) * get(weight, 0, c);
      sum_g += g;
      sum_gx += g * xhat;
      weight_sum[c] += get(dy, r, c) * xhat;
      bias_sum[c] += get(dy, r, c);
    }
    const double mean_g = kind == NormKind::layernorm ? sum_g / double(c_count) : 0.0;
    const double mean_gx = sum_gx / double(c_count);
    for (int64_t c = 0; c < c_count; ++c) {
      const double xhat = (get(x, r, c) - mean) * rstd;
      const double g = double(get(dy, r, c)) * get(weight, 0, c);
      put(dx, r, c, (g - mean_g - xhat * mean_gx) * rstd + (dresidual ? get(dresidual, r, c) : 0.0f));
    }
  }
  const auto finish = [&](const Matrix& to, int64_t c, float sum) { put(to, 0, c, accumulate ? get(to, 0, c) + sum : sum); };
  for (int64_t c = 0; c < c_count; ++c) {
    finish(dweight, c, float(weight_sum[c]));
    if (dbias) {
      finish(dbias, c, float(bias_sum[c]));
    }
  }
}

}  // namespace trainctl::kernels::reference
