#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {
// Also the blocks by which parameter gradients are summed: changing it changes bits.
constexpr int64_t kNormRows = 16;

Matrix rows_of(const Matrix& m, int64_t first, int64_t n) { return m ? m.row_range(first, n) : m; }
}  // namespace

void CpuBackend::compute(const NormForward& op) {
  over_rows(op.x.rows, kNormRows, [&](int64_t r, int64_t n) {
    kernels_.norm_forward({op.kind, rows_of(op.x, r, n), rows_of(op.delta, r, n), op.weight, op.bias, op.eps,
                           rows_of(op.sum, r, n), rows_of(op.y, r, n), op.stats + 2 * r, op.weight_offset});
  });
}

void CpuBackend::compute(const NormApply& op) {
  over_rows(op.x.rows, kNormRows, [&](int64_t r, int64_t n) {
    kernels_.norm_apply({op.kind, rows_of(op.x, r, n), op.stats + 2 * r, op.weight, op.bias,
                         rows_of(op.y, r, n), op.weight_offset});
  });
}

/// to (+)= the column sums of `blocks`, f32, at most kColumnSums columns, which may be overwritten.
void CpuBackend::add_blocks(const Matrix& blocks, float* to, bool accumulate) {
  float* const total = accumulate ? blocks.as<float>() : to;  // a column is read before its sum is written
  kernels_.column_sums(blocks, total, false);
  if (accumulate) {
    kernels_.add({vector(total, DType::f32, blocks.cols), vector(to, DType::f32, blocks.cols)});
  }
}

void CpuBackend::compute(const NormBackward& op) {
  if (op.x.rows == 0 && op.accumulate) {
    return;
  }
  const int64_t blocks = (op.x.rows + kNormRows - 1) / kNormRows, c_count = op.x.cols;
  float* sums = scratch_floats(ScratchUse::op, size_t(blocks * 2 * c_count));
  over_rows(op.x.rows, kNormRows, [&](int64_t r, int64_t n) {
    float* own = sums + r / kNormRows * 2 * c_count;
    kernels_.norm_backward({op.kind, rows_of(op.dy, r, n), rows_of(op.x, r, n), op.weight, op.stats + 2 * r,
                            rows_of(op.dresidual, r, n), rows_of(op.dx, r, n),
                            vector(own, DType::f32, c_count), vector(own + c_count, DType::f32, c_count),
                            false, op.weight_offset});
  });
  over_rows(c_count, kColumnSums, [&](int64_t c, int64_t n) {
    add_blocks({sums + c, DType::f32, blocks, n, 2 * c_count}, op.dweight.as<float>() + c, op.accumulate);
    if (op.dbias) {
      add_blocks({sums + c_count + c, DType::f32, blocks, n, 2 * c_count}, op.dbias.as<float>() + c,
                 op.accumulate);
    }
  });
}

}  // namespace trainctl::kernels::cpu
