#include "kernels/reference/compute.h"

namespace trainctl::kernels::reference {

void compute(const Rope& op) {
  const int64_t half = op.turned() / 2;
  const int64_t step = op.interleaved ? 2 : 1, apart = op.interleaved ? 1 : half;
  for (int64_t m = 0; m < op.x.rows; ++m) {
    const int64_t position = op.positions ? op.positions[m] : m % op.seq_len;
    const float* row = op.cos_sin + position * op.turned();
    for (int64_t head = op.rotary_begin; head < op.x.cols; head += op.head_dim) {
      for (int64_t d = 0; d < half; ++d) {
        const int64_t first = head + d * step, second = first + apart;
        const double a = get(op.x, m, first), b = get(op.x, m, second);
        const double cosine = row[d], sine = op.inverse ? -row[half + d] : row[half + d];
        put(op.x, m, first, a * cosine - b * sine);
        put(op.x, m, second, b * cosine + a * sine);
      }
    }
  }
}

}  // namespace trainctl::kernels::reference
