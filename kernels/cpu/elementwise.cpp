#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::compute(const FillZero& op) {
  constexpr size_t kBlock = size_t(1) << 20;
  pool_.run(int64_t((op.size + kBlock - 1) / kBlock), [&](int64_t task, int) {
    const size_t begin = size_t(task) * kBlock;
    std::memset(static_cast<char*>(op.data) + begin, 0, std::min(kBlock, op.size - begin));
  });
}

void CpuBackend::compute(const Copy& op) { over_elements(op, kernels_.copy); }
void CpuBackend::compute(const Add& op) { over_elements(op, kernels_.add); }
void CpuBackend::compute(const TreeSum& op) {
  const int64_t block = kTileElements;
  over_rows(op.count, block, [&](int64_t begin, int64_t n) {
    kernels_.tree_sum(op.inputs.data(), op.inputs.size(), op.out, op.dtype, begin, n);
  });
}

void CpuBackend::compute(const AddRounded& op) { over_elements(op, kernels_.add_rounded); }
void CpuBackend::compute(const ScaledAdd& op) { over_elements(op, kernels_.scaled_add); }

}  // namespace trainctl::kernels::cpu
