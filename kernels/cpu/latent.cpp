// Plain copies and one short sum: memory limits them, so that vectors of their own would gain nothing.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

namespace {

constexpr int64_t kRows = 16;

template <typename Body>
void with_number(DType dtype, Body body) {
  if (dtype == DType::f32)
    body(float{});
  else if (dtype == DType::f16)
    body(f16{});
  else
    body(bf16{});
}

template <typename T>
T* at(const Matrix& m, int64_t row, int64_t column) {
  return m.as<T>() + row * m.stride + column;
}

template <typename T>
void expand(const ExpandKeys& op, int64_t m) {
  const int64_t d = op.head_dim(), own = op.own_dim(), width = op.value_dim();
  for (int64_t h = 0; h < op.heads; ++h) {
    const T* from = at<T>(op.kv, m, h * (own + width));
    T *k = at<T>(op.k, m, h * d), *v = at<T>(op.v, m, h * d);
    std::memcpy(k, from, size_t(own) * sizeof(T));
    std::memcpy(k + own, at<T>(op.shared, m, 0), size_t(d - own) * sizeof(T));
    std::memcpy(v, from + own, size_t(width) * sizeof(T));
    std::fill(v + width, v + d, T(0.0f));
  }
}

template <typename T>
void gather_gradients(const ExpandKeysBackward& op, int64_t m) {
  const int64_t d = op.head_dim(), own = op.own_dim(), width = op.value_dim();
  for (int64_t h = 0; h < op.heads; ++h) {
    T* to = at<T>(op.kv, m, h * (own + width));
    std::memcpy(to, at<T>(op.k, m, h * d), size_t(own) * sizeof(T));
    std::memcpy(to + own, at<T>(op.v, m, h * d), size_t(width) * sizeof(T));
  }
  for (int64_t c = 0; c < op.shared.cols; ++c) {
    float sum = 0;
    for (int64_t h = 0; h < op.heads; ++h) sum += float(*at<T>(op.k, m, h * d + own + c));
    *at<T>(op.shared, m, c) = T(sum);
  }
}

}  // namespace

void CpuBackend::compute(const ExpandKeys& op) {
  over_rows(op.k.rows, kRows, [&](int64_t first, int64_t n) {
    for (int64_t m = first; m < first + n; ++m)
      with_number(op.k.dtype, [&](auto t) { expand<decltype(t)>(op, m); });
  });
}

void CpuBackend::compute(const ExpandKeysBackward& op) {
  over_rows(op.k.rows, kRows, [&](int64_t first, int64_t n) {
    for (int64_t m = first; m < first + n; ++m)
      with_number(op.k.dtype, [&](auto t) { gather_gradients<decltype(t)>(op, m); });
  });
}

}  // namespace trainctl::kernels::cpu
