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

void CpuBackend::quantize_blocks(const Matrix& w) {
  const int64_t across = fp8_groups(w.cols);
  pool_.run(fp8_groups(w.rows) * across, [&](int64_t task, int) {
    const int64_t r = task / across * kFp8Group, c = task % across * kFp8Group;
    const Matrix block = part(w, r, std::min(kFp8Group, w.rows - r), c, std::min(kFp8Group, w.cols - c));
    kernels_.quantize_group({.x = block, .y = block}, kernels_.largest_finite(block));
  });
}

void CpuBackend::quantize_columns(const Quantize& op) {
  const int64_t across = (op.x.cols + kColumnsOfTask - 1) / kColumnsOfTask;
  pool_.run(fp8_groups(op.x.rows) * across, [&](int64_t task, int) {
    const int64_t r = task / across * kFp8Group, c = task % across * kColumnsOfTask;
    const auto of = [&](const Matrix& m) {
      return part(m, r, std::min(kFp8Group, m.rows - r), c, std::min(kColumnsOfTask, m.cols - c));
    };
    kernels_.quantize_columns({.x = of(op.x), .y = of(op.y), .format = op.format});
  });
}

void CpuBackend::compute(const Quantize& op) {
  if (op.groups == Fp8Groups::rows) {
    over_rows(op.x.rows, kRowsOfTask, [&](int64_t begin, int64_t n) {
      kernels_.quantize_rows(
          {.x = op.x.row_range(begin, n), .y = op.y.row_range(begin, n), .format = op.format});
    });
    return;
  }
  const auto each = [&](int64_t begin, int64_t rows) {
    if (rows == 0) return;
    const Quantize of{
        .x = op.x.row_range(begin, rows), .y = op.y.row_range(begin, rows), .format = op.format};
    op.groups == Fp8Groups::columns ? quantize_columns(of) : quantize_whole(of);
  };
  if (!op.offsets) return each(0, op.x.rows);
  const auto* begins = op.offsets.as<int32_t>();
  for (int64_t e = 0; e + 1 < op.offsets.cols; ++e) each(begins[e], begins[e + 1] - begins[e]);
}

void CpuBackend::compute(const QuantizeWeight& op) {
  const int64_t rows = op.w.rows / op.parts;
  for (int64_t p = 0; p < op.parts; ++p) {
    const Matrix w = op.w.row_range(p * rows, rows);
    if (op.groups == Fp8Groups::blocks)
      quantize_blocks(w);
    else
      quantize_whole({.x = w, .y = w});
  }
}

}  // namespace trainctl::kernels::cpu
