#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/isa/vec.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {

namespace {

/// Pairs (i, i + half) of one head.
template <typename T>
void turn_halves(T* a, int64_t half, const float* angles, float sign) {
  T* b = a + half;
  for_lanes(half, [&](int64_t c, auto lanes) {
    const V cosine = load(angles + c, lanes), sine = load(angles + half + c, lanes) * sign;
    const V u = load(a + c, lanes), v = load(b + c, lanes);
    store(a + c, u * cosine - v * sine, lanes);
    store(b + c, v * cosine + u * sine, lanes);
  });
}

/// Pairs (2i, 2i + 1), with the operations of the other.
template <typename T>
void turn_neighbours(T* pairs, int64_t half, const float* angles, float sign) {
  for (int64_t i = 0; i < half; ++i) {
    const float cosine = angles[i], sine = angles[half + i] * sign;
    const float u = float(pairs[2 * i]), v = float(pairs[2 * i + 1]);
    pairs[2 * i] = T(u * cosine - v * sine);
    pairs[2 * i + 1] = T(v * cosine + u * sine);
  }
}

}  // namespace

void rope(const Rope& op, int64_t first_position) {
  const Matrix& x = op.x;
  const int64_t half = op.turned() / 2;
  const float sign = op.inverse ? -1.0f : 1.0f;
  with_type(x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t r = 0; r < x.rows; ++r) {
      const int64_t position = op.positions != nullptr ? op.positions[r] : (first_position + r) % op.seq_len;
      const float* angles = op.cos_sin + position * op.turned();
      for (int64_t head = op.rotary_begin; head < x.cols; head += op.head_dim) {
        if (op.interleaved) {
          turn_neighbours(row<T>(x, r) + head, half, angles, sign);
        } else {
          turn_halves(row<T>(x, r) + head, half, angles, sign);
        }
      }
    }
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
