#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

void compute(const NormForward& op) {
  Matrix source = op.x;
  if (op.delta) {
    for (int64_t r = 0; r < op.x.rows; ++r) {
      for (int64_t c = 0; c < op.x.cols; ++c) {
        put(op.sum, r, c, get(op.x, r, c) + get(op.delta, r, c));
      }
    }
    source = op.sum;
  }
  for (int64_t r = 0; r < op.x.rows; ++r) {
    double mean = 0;
    if (op.kind == NormKind::layernorm) {
      for (int64_t c = 0; c < op.x.cols; ++c) {
        mean += get(source, r, c);
      }
      mean /= double(op.x.cols);
    }
    double variance = 0;
    for (int64_t c = 0; c < op.x.cols; ++c) {
      const double d = get(source, r, c) - mean;
      variance += d * d;
    }
    op.stats[2 * r] = float(mean);
    op.stats[2 * r + 1] = float(1.0 / std::sqrt(variance / double(op.x.cols) + op.eps));
  }
  compute(NormApply{.kind = op.kind,
                    .x = source,
                    .stats = op.stats,
                    .weight = op.weight,
                    .bias = op.bias,
                    .y = op.y,
                    .weight_offset = op.weight_offset});
}

void compute(const NormApply& op) {
  for (int64_t r = 0; r < op.x.rows; ++r) {
    const double mean = op.stats[2 * r], rstd = op.stats[2 * r + 1];
    for (int64_t c = 0; c < op.x.cols; ++c) {
      put(op.y, r, c,
          (get(op.x, r, c) - mean) * rstd * norm_weight(op, c) + (op.bias ? get(op.bias, 0, c) : 0.0f));
    }
  }
}

void compute(const NormBackward& op) {
  const int64_t c_count = op.x.cols;
  std::vector<double> weight_sum(c_count), bias_sum(c_count);
  for (int64_t r = 0; r < op.x.rows; ++r) {
    const double mean = op.stats[2 * r], rstd = op.stats[2 * r + 1];
    double sum_g = 0, sum_gx = 0;  // over c of g = dy * weight and of g * xhat
    for (int64_t c = 0; c < c_count; ++c) {
      const double xhat = (get(op.x, r, c) - mean) * rstd;
      const double g = get(op.dy, r, c) * norm_weight(op, c);
      sum_g += g;
      sum_gx += g * xhat;
      weight_sum[c] += get(op.dy, r, c) * xhat;
      bias_sum[c] += get(op.dy, r, c);
    }
    const double mean_g = op.kind == NormKind::layernorm ? sum_g / double(c_count) : 0.0;
    const double mean_gx = sum_gx / double(c_count);
    for (int64_t c = 0; c < c_count; ++c) {
      const double xhat = (get(op.x, r, c) - mean) * rstd;
      const double g = get(op.dy, r, c) * norm_weight(op, c);
      put(op.dx, r, c, (g - mean_g - xhat * mean_gx) * rstd + (op.dresidual ? get(op.dresidual, r, c) : 0.0f));
    }
  }
  const auto finish = [&](const Matrix& to, int64_t c, float sum) { put(to, 0, c, op.accumulate ? get(to, 0, c) + sum : sum); };
  for (int64_t c = 0; c < c_count; ++c) {
    finish(op.dweight, c, float(weight_sum[c]));
    if (op.dbias) {
      finish(op.dbias, c, float(bias_sum[c]));
    }
  }
}

}  // namespace trainctl::kernels::reference
