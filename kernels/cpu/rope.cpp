#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::compute(const Rope& op) {
  constexpr int64_t kRows = 16;
  over_rows(op.x.rows, kRows, [&](int64_t r, int64_t n) {
    Rope rows = op;
    rows.x = op.x.row_range(r, n);
    if (op.positions != nullptr) rows.positions += r;
    kernels_.rope(rows, r % op.seq_len);
  });
}

}  // namespace trainctl::kernels::cpu
