#include <cstring>

#include "kernels/reference/reference_backend.h"

namespace trainctl::kernels::reference {

void ReferenceBackend::fill_zero(Stream&, void* data, size_t bytes) { std::memset(data, 0, bytes); }

void ReferenceBackend::copy(Stream&, Matrix src, Matrix dst) {
  check_same_shape(src, dst);
  for (int64_t r = 0; r < src.rows; ++r) {
    for (int64_t c = 0; c < src.cols; ++c) {
      put(dst, r, c, get(src, r, c));
    }
  }
}

void ReferenceBackend::add(Stream&, Matrix src, Matrix dst) {
  check_same(src, dst);
  for (int64_t r = 0; r < src.rows; ++r) {
    for (int64_t c = 0; c < src.cols; ++c) {
      put(dst, r, c, get(dst, r, c) + get(src, r, c));
    }
  }
}

void ReferenceBackend::tree_sum(Stream&, std::span<const void* const> inputs, void* out, DType dtype, int64_t count) {
  ENSURE(!inputs.empty() && is_activation(dtype));
  const Matrix result = vector(out, dtype, count);
  std::vector<float> level(inputs.size());
  for (int64_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < inputs.size(); ++j) {
      level[j] = get(vector(const_cast<void*>(inputs[j]), dtype, count), 0, i);
    }
    for (size_t width = inputs.size(); width > 1; width = (width + 1) / 2) {
      for (size_t j = 0; j < width / 2; ++j) {
        level[j] = level[2 * j] + level[2 * j + 1];
      }
      if (width % 2 == 1) {
        level[width / 2] = level[width - 1];
      }
    }
    put(result, 0, i, level[0]);
  }
}

void ReferenceBackend::add_rounded(Stream&, Matrix left, Matrix right, Matrix out) {
  check_same(left, right);
  check_same_shape(left, out);
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) {
      put(out, r, c, float(bf16(get(left, r, c))) + float(bf16(get(right, r, c))));
    }
  }
}

}  // namespace trainctl::kernels::reference
