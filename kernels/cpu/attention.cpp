#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::rope(Stream&, Matrix x, int64_t head_dim, int64_t seq_len, const float* cos_sin, bool inverse) {
  check_rope(x, head_dim, seq_len);
  constexpr int64_t kRows = 16;
  over_rows(x.rows, kRows, [&](int64_t r, int64_t n) {
    kernels_.rope(x.row_range(r, n), head_dim, r % seq_len, seq_len, cos_sin, inverse);
  });
}

void CpuBackend::attention_forward(Stream&, const AttentionShape& s, Matrix q, Matrix k, Matrix v, Matrix out,
                                   float* lse) {
  check_attention(s, q, k, v, out);
  check_causal(s);
  const AttentionMatrices matrices{.q = q, .k = k, .v = v, .out = out, .lse = lse};
  const int64_t blocks = (s.seq_len + kQueryBlock - 1) / kQueryBlock;
  const size_t floats = kernels_.attention_scratch_floats(s, false);
  pool_.run(s.batch * s.heads * blocks, [&](int64_t task, int) {
    const int64_t head = task / blocks;
    const int64_t query = (blocks - 1 - task % blocks) * kQueryBlock;  // late queries see most keys: longest first
    kernels_.attention_forward(
        s, matrices, {head / s.heads, head % s.heads, query, std::min(kQueryBlock, s.seq_len - query)},
        scratch_floats(ScratchUse::task, floats));
  });
}

void CpuBackend::attention_backward(Stream&, const AttentionShape& s, Matrix q, Matrix k, Matrix v, Matrix out,
                                    const float* lse, Matrix dout, Matrix dq, Matrix dk, Matrix dv) {
  check_attention(s, q, k, v, out);
  check_attention(s, dq, dk, dv, dout);
  check_causal(s);
  const AttentionMatrices matrices{.q = q, .k = k, .v = v, .out = out, .dout = dout, .dq = dq, .dk = dk, .dv = dv,
                                   .lse = const_cast<float*>(lse)};
  const size_t floats = kernels_.attention_scratch_floats(s, true);
  pool_.run(s.batch * s.kv_heads, [&](int64_t task, int) {
    kernels_.attention_backward(s, matrices, {task / s.kv_heads, task % s.kv_heads},
                                scratch_floats(ScratchUse::task, floats));
  });
}

}  // namespace trainctl::kernels::cpu
