#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {
namespace {

/// Rows and columns that one task takes.
constexpr int64_t kRowsOfTask = 16, kColumnsOfTask = 256;

}  // namespace

void CpuBackend::quantize_whole(const Quantize& op) {
  const int64_t tasks = (op.x.rows + kRowsOfTask - 1) / kRowsOfTask;
  std::vector<float> largest(size_t(std::max<int64_t>(1, tasks)));
  const auto rows_of = [&](const Matrix& m, int64_t begin, int64_t n) { return m.row_range(begin, n); };
  over_rows(op.x.rows, kRowsOfTask, [&](int64_t begin, int64_t n) {
    largest[size_t(begin / kRowsOfTask)] = kernels_.largest_finite(rows_of(op.x, begin, n));
  });
  const float of_all = *std::max_element(largest.begin(), largest.end());
  over_rows(op.x.rows, kRowsOfTask, [&](int64_t begin, int64_t n) {
    kernels_.quantize_group({.x = rows_of(op.x, begin, n), .y = rows_of(op.y, begin, n), .format = op.format},
                            of_all);
  });
}

void CpuBackend::quantize_blocks(const Quantize& op) {
  const int64_t across = fp8_groups(op.x.cols, op.group);
  pool_.run(fp8_groups(op.x.rows, op.group) * across, [&](int64_t task, int) {
    const int64_t r = task / across * op.group, c = task % across * op.group;
    const auto of = [&](const Matrix& m) {
      return part(m, r, std::min(op.group, m.rows - r), c, std::min(op.group, m.cols - c));
    };
    kernels_.quantize_group({.x = of(op.x), .y = of(op.y), .format = op.format},
                            kernels_.largest_finite(of(op.x)));
  });
}

void CpuBackend::quantize_columns(const Quantize& op) {
  const int64_t across = (op.x.cols + kColumnsOfTask - 1) / kColumnsOfTask;
  pool_.run(fp8_groups(op.x.rows, op.group) * across, [&](int64_t task, int) {
    const int64_t r = task / across * op.group, c = task % across * kColumnsOfTask;
    const auto of = [&](const Matrix& m) {
      return part(m, r, std::min(op.group, m.rows - r), c, std::min(kColumnsOfTask, m.cols - c));
    };
    kernels_.quantize_columns({.x = of(op.x), .y = of(op.y), .format = op.format});
  });
}

void CpuBackend::quantize(const Quantize& op) {
  if (op.x.rows == 0) return;
  switch (op.groups) {
    case Fp8Groups::rows:
      return over_rows(op.x.rows, kRowsOfTask, [&](int64_t begin, int64_t n) {
        kernels_.quantize_rows({.x = op.x.row_range(begin, n),
                                .y = op.y.row_range(begin, n),
                                .format = op.format,
                                .group = op.group});
      });
    case Fp8Groups::columns: return quantize_columns(op);
    case Fp8Groups::blocks: return quantize_blocks(op);
    case Fp8Groups::whole: return quantize_whole(op);
  }
}

void CpuBackend::compute(const Quantize& op) {
  if (!op.offsets || op.groups == Fp8Groups::rows) return quantize(op);
  const auto* begins = op.offsets.as<int32_t>();
  for (int64_t e = 0; e + 1 < op.offsets.cols; ++e) {
    const int64_t begin = begins[e], rows = begins[e + 1] - begin;
    quantize({.x = op.x.row_range(begin, rows),
              .y = op.y.row_range(begin, rows),
              .format = op.format,
              .groups = op.groups,
              .group = op.group});
  }
}

void CpuBackend::compute(const QuantizeWeight& op) {
  const int64_t rows = op.w.rows / op.parts;
  for (int64_t p = 0; p < op.parts; ++p)
    quantize({.x = op.w.row_range(p * rows, rows),
              .y = op.result().row_range(p * rows, rows),
              .groups = op.groups,
              .group = op.group});
}

}  // namespace trainctl::kernels::cpu
