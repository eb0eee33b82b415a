#include "kernels/cpu/isa/rounding.h"
#include "kernels/cpu/isa/table.h"

namespace trainctl::kernels::cpu::TRAINCTL_ISA {
namespace {

static_assert(kFp4Group == kLanes);
constexpr Fp8Format kScaleFormat = format_of(Fp8::e4m3);

/// Sixteen columns of a band, as products see them before they are rounded.
struct Fp4Tile {
  V rows[kFp4Group];

  template <typename T>
  TRAINCTL_INLINE Fp4Tile(const Fp4Band& band, T, int64_t c, auto lanes) {
    for (int64_t r = 0; r < kFp4Group; ++r)
      rows[r] = r < band.x.rows ? load(row<T>(band.x, r) + c, lanes) : V{};
    if (!band.mixes || band.x.rows < kFp4Group) return;
    fp4_mix(rows, band.signs);
    for (V& of : rows) {
      T rounded[kLanes];
      store(rounded, of, Full{});
      of = load(rounded, Full{});
    }
  }
  TRAINCTL_INLINE V largest_of_columns() const {
    V largest = {};
    for (const V& of : rows) largest = larger_of(largest, of);
    return largest;
  }
};

/// Of sizes up to 6.
TRAINCTL_INLINE V nearest_fp4(V size) {
  // Added to a number and taken away again, it leaves whole steps of 0.5, 1 or 2.
  const V shift =
      select(size < splat(2), splat(0x1.8p22f), select(size < splat(4), splat(0x1.8p23f), splat(0x1.8p24f)));
  return (size + shift) - shift;
}

/// See fp4_drawn_code.
TRAINCTL_INLINE Register drawn_fp4(Register size, WordRegister noise) {
  const WordRegister cut = 22 - (WordRegister)(size >= 2.0f) - (WordRegister)(size >= 4.0f);
  const WordRegister at = (WordRegister) __builtin_convertvector(size * 0x1p23f, IntRegister);
  const WordRegister steps = (at + (noise >> (32 - cut))) >> cut;
  return __builtin_convertvector((IntRegister)(steps << (cut - 22)), Register) * 0.5f;
}

struct Fp4Rounding {
  const Fp4Band& band;
  const Rounding scales{kScaleFormat};
  const V up = splat(band.power), down = splat(1 / band.power);

  TRAINCTL_INLINE V scale_of(V largest) const { return scales.of(largest * down / kFp4Largest); }
  TRAINCTL_INLINE V seen(V x, V scale, uint32_t index) const {
    const V part = size_of_each(x) * down / scale;
    V size = select(part < splat(kFp4Largest), part, splat(kFp4Largest));
    size = select(scale > V{}, size, V{});
    const V rounded = band.draws ? each_register([&](int i) {
      return drawn_fp4(size.part[i], weight_noises(band.key, index + uint32_t(i * kRegisterLanes)));
    })
                                 : nearest_fp4(size);
    const V value = rounded * scale * up;
    const V with_sign = each_register([&](int i) {
      return (Register)((WordRegister)value.part[i] | ((WordRegister)x.part[i] & 0x80000000u));
    });
    return select(size_of_each(x) < splat(kInfinity), with_sign, splat(__builtin_nanf("")));
  }
};

}  // namespace

float fp4_largest(const Fp4Band& band) {
  V largest = {};
  with_type(band.x.dtype, [&](auto t) {
    for_lanes(band.x.cols, [&](int64_t c, auto lanes) {
      largest = larger_of(largest, Fp4Tile(band, t, c, lanes).largest_of_columns());
    });
  });
  return lane_max(largest);
}

void fp4_round(const Fp4Band& band) {
  const Fp4Rounding rounding{band};
  with_type(band.x.dtype, [&](auto t) {
    using T = decltype(t);
    for_lanes(band.x.cols, [&](int64_t c, auto lanes) {
      const Fp4Tile tile(band, t, c, lanes);
      V largest = tile.largest_of_columns();
      if (band.groups == Fp8Groups::blocks) largest = splat(lane_max(largest));
      V scale = rounding.scale_of(largest);
      for (int64_t r = 0; r < band.x.rows; ++r) {
        const V x = tile.rows[r];
        if (band.groups == Fp8Groups::rows) scale = rounding.scale_of(splat(lane_max(larger_of(V{}, x))));
        store(row<T>(band.y, r) + c, rounding.seen(x, scale, uint32_t((band.first + r) * band.x.cols + c)),
              lanes);
      }
    });
  });
}

}  // namespace trainctl::kernels::cpu::TRAINCTL_ISA
