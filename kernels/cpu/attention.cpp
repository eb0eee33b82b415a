#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::compute(const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  check_documents(s);
  const int64_t blocks = (s.seq_len + kQueryBlock - 1) / kQueryBlock;
  const size_t floats = kernels_.attention_scratch_floats(s, false);
  pool_.run(s.batch * s.heads * blocks, [&](int64_t task, int) {
    const int64_t head = task / blocks;
    const int64_t query = (blocks - 1 - task % blocks) * kQueryBlock;  // late queries see most keys: longest first
    kernels_.attention_forward(
        op, {head / s.heads, head % s.heads, query, std::min(kQueryBlock, s.seq_len - query)},
        scratch_floats(ScratchUse::task, floats));
  });
}

void CpuBackend::compute(const AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  check_documents(s);
  const size_t floats = kernels_.attention_scratch_floats(s, true);
  pool_.run(s.batch * s.kv_heads, [&](int64_t task, int) {
    kernels_.attention_backward(op, {task / s.kv_heads, task % s.kv_heads},
                                scratch_floats(ScratchUse::task, floats));
  });
}

void CpuBackend::compute(const HeadScalarBackward& op) {
  // Also the blocks by which the gradient is summed: changing it changes bits.
  constexpr int64_t kRows = 64;
  const int64_t rows = op.left().rows, blocks = (rows + kRows - 1) / kRows, heads = op.heads();
  if (rows == 0 && op.accumulate) {
    return;
  }
  float* sums = scratch_floats(ScratchUse::op, size_t(blocks * heads));
  over_rows(rows, kRows,
            [&](int64_t r, int64_t n) { kernels_.head_scalar_sums(op, r, n, sums + r / kRows * heads); });
  over_rows(heads, kColumnSums, [&](int64_t h, int64_t n) {
    float* const to = op.dvalues.as<float>() + h;
    float* const total = op.accumulate ? sums + h : to;  // a column is read before its sum is written
    kernels_.column_sums({sums + h, DType::f32, blocks, n, heads}, total, false);
    if (op.accumulate) {
      kernels_.add({vector(total, DType::f32, n), vector(to, DType::f32, n)});
    }
  });
}

}  // namespace trainctl::kernels::cpu
