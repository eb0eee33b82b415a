#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::compute(const AttentionForward& op) {
  const AttentionShape& s = op.shape;
  check_causal(s);
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
  check_causal(s);
  const size_t floats = kernels_.attention_scratch_floats(s, true);
  pool_.run(s.batch * s.kv_heads, [&](int64_t task, int) {
    kernels_.attention_backward(op, {task / s.kv_heads, task % s.kv_heads},
                                scratch_floats(ScratchUse::task, floats));
  });
}

}  // namespace trainctl::kernels::cpu
