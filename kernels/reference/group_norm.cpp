#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

namespace {

/// Calls body(row, index of the group's sum, its first column) for each group of each row.
template <typename Body>
void each_group(const Matrix& x, int64_t group, Body body) {
  const int64_t groups = x.cols / group;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      body(r, r * groups + g, g * group);
    }
  }
}

double rstd_of(const auto& op, int64_t i) {
  return 1.0 / std::sqrt(double(op.sums[i]) / double(op.count) + op.eps);
}

}  // namespace

void compute(const GroupNormSums& op) {
  each_group(op.x, op.group, [&](int64_t r, int64_t i, int64_t first) {
    double sum = 0;
    for (int64_t c = first; c < first + op.group; ++c) {
      sum += double(get(op.x, r, c)) * get(op.x, r, c);
    }
    op.sums[i] = float(sum);
  });
}

void compute(const GroupNormApply& op) {
  each_group(op.x, op.group, [&](int64_t r, int64_t i, int64_t first) {
    const double rstd = rstd_of(op, i);
    for (int64_t c = 0; c < op.group; ++c) {
      put(op.y, r, first + c, get(op.x, r, first + c) * rstd * norm_weight(op, c));
    }
  });
}

void compute(const GroupNormDots& op) {
  each_group(op.x, op.group, [&](int64_t r, int64_t i, int64_t first) {
    double dot = 0;
    for (int64_t c = 0; c < op.group; ++c) {
      dot += get(op.dy, r, first + c) * norm_weight(op, c) * get(op.x, r, first + c);
    }
    op.dots[i] = float(dot);
  });
}

void compute(const GroupNormBackward& op) {
  std::vector<double> weight_sum(op.group);
  each_group(op.x, op.group, [&](int64_t r, int64_t i, int64_t first) {
    const double rstd = rstd_of(op, i), of_x = rstd * rstd * rstd * op.dots[i] / double(op.count);
    for (int64_t c = 0; c < op.group; ++c) {
      const double dy = get(op.dy, r, first + c), x = get(op.x, r, first + c);
      weight_sum[c] += dy * x * rstd;
      put(op.dx, r, first + c, rstd * dy * norm_weight(op, c) - x * of_x);
    }
  });
  for (int64_t c = 0; c < op.group; ++c) {
    const float sum = float(weight_sum[c]);
    put(op.dweight, 0, c, op.accumulate ? get(op.dweight, 0, c) + sum : sum);
  }
}

}  // namespace trainctl::kernels::reference
