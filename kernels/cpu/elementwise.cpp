#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::fill_zero(Stream&, void* data, size_t bytes) {
  constexpr size_t kBlock = size_t(1) << 20;
  pool_.run(int64_t((bytes + kBlock - 1) / kBlock), [&](int64_t task, int) {
    const size_t begin = size_t(task) * kBlock;
    std::memset(static_cast<char*>(data) + begin, 0, std::min(kBlock, bytes - begin));
  });
}

void CpuBackend::copy(Stream&, Matrix src, Matrix dst) {
  check_same_shape(src, dst);
  over_elements({src, dst}, [&](const Matrix* m) { kernels_.copy(m[0], m[1]); });
}

void CpuBackend::add(Stream&, Matrix src, Matrix dst) {
  check_same(src, dst);
  over_elements({src, dst}, [&](const Matrix* m) { kernels_.add(m[0], m[1]); });
}

void CpuBackend::tree_sum(Stream&, std::span<const void* const> inputs, void* out, DType dtype, int64_t count) {
  ENSURE(!inputs.empty() && is_activation(dtype));
  const int64_t block = kTileElements;
  over_rows(count, block, [&](int64_t begin, int64_t n) {
    kernels_.tree_sum(inputs.data(), inputs.size(), out, dtype, begin, n);
  });
}

void CpuBackend::add_rounded(Stream&, Matrix left, Matrix right, Matrix out) {
  check_same(left, right);
  check_same_shape(left, out);
  over_elements({left, right, out}, [&](const Matrix* m) { kernels_.add_rounded(m[0], m[1], m[2]); });
}

}  // namespace trainctl::kernels::cpu
