#include "kernels/cpu/cpu_backend.h"

namespace trainctl::kernels::cpu {

void CpuBackend::compute(const QuantizeFp4& op) {
  op.for_each_part([&](int64_t first, int64_t rows, uint32_t expert) {
    if (rows == 0) return;
    Fp4Band whole{.groups = op.groups,
                  .mixes = op.mixes.has_value(),
                  .signs = op.mixes.value_or(0),
                  .draws = op.noise.exists,
                  .key = op.noise.key(expert)};
    const auto band_at = [&](int64_t begin, int64_t n) {
      Fp4Band band = whole;
      band.x = op.x.row_range(first + begin, n), band.y = op.y.row_range(first + begin, n),
      band.first = begin;
      return band;
    };
    std::vector<float> largest(size_t(fp8_groups(rows, kFp4Group)));
    over_rows(rows, kFp4Group, [&](int64_t begin, int64_t n) {
      largest[size_t(begin / kFp4Group)] = kernels_.fp4_largest(band_at(begin, n));
    });
    whole.power = std::ldexp(1.0f, fp4_scale(*std::max_element(largest.begin(), largest.end())));
    over_rows(rows, kFp4Group, [&](int64_t begin, int64_t n) { kernels_.fp4_round(band_at(begin, n)); });
  });
}

}  // namespace trainctl::kernels::cpu
