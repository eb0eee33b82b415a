#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {
// Also the blocks by which the weight's gradient is summed: changing it changes bits.
constexpr int64_t kGroupNormRows = 16;
}  // namespace

void CpuBackend::compute(const GroupNormSums& op) {
  over_rows(op.x.rows, kGroupNormRows, [&](int64_t r, int64_t n) {
    kernels_.group_norm_sums(
        {op.x.row_range(r, n), op.group, op.count, op.sums + r * (op.x.cols / op.group)});
  });
}

void CpuBackend::compute(const GroupNormApply& op) {
  over_rows(op.x.rows, kGroupNormRows, [&](int64_t r, int64_t n) {
    GroupNormApply rows = op;
    rows.x = op.x.row_range(r, n), rows.y = op.y.row_range(r, n);
    rows.sums += r * (op.x.cols / op.group);
    kernels_.group_norm_apply(rows);
  });
}

void CpuBackend::compute(const GroupNormDots& op) {
  over_rows(op.x.rows, kGroupNormRows, [&](int64_t r, int64_t n) {
    GroupNormDots rows = op;
    rows.x = op.x.row_range(r, n), rows.dy = op.dy.row_range(r, n);
    rows.dots += r * (op.x.cols / op.group);
    kernels_.group_norm_dots(rows);
  });
}

void CpuBackend::compute(const GroupNormBackward& op) {
  if (op.x.count() == 0 && op.accumulate) {
    return;
  }
  const int64_t blocks = op.x.cols > 0 ? (op.x.rows + kGroupNormRows - 1) / kGroupNormRows : 0;
  float* sums = scratch_floats(ScratchUse::op, size_t(blocks * op.group));
  over_rows(op.x.rows, kGroupNormRows, [&](int64_t r, int64_t n) {
    GroupNormBackward rows = op;
    rows.x = op.x.row_range(r, n), rows.dy = op.dy.row_range(r, n), rows.dx = op.dx.row_range(r, n);
    rows.sums += r * (op.x.cols / op.group), rows.dots += r * (op.x.cols / op.group);
    rows.dweight = vector(sums + r / kGroupNormRows * op.group, DType::f32, op.group);
    kernels_.group_norm_backward(rows);
  });
  over_rows(op.group, kColumnSums, [&](int64_t c, int64_t n) {
    add_blocks({sums + c, DType::f32, blocks, n, op.group}, op.dweight.as<float>() + c, op.accumulate);
  });
}

}  // namespace trainctl::kernels::cpu
