// Goal: NVFP4 values, both their scales, the mean of random rounding and the Hadamard matrix are what the
// format and its recipe say, and every CPU sees the same of an operand as the reference. Method: all 16
// codes, ties and the numbers next to them; each rounding by looking at all values there are, in double
// precision; random numbers counted over all their upper bits; random matrices of ragged shapes with zeros,
// tiny, huge and no numbers, bit for bit.
#include <bit>
#include <set>

#include "support.h"

namespace trainctl::kernels::test {

namespace {

constexpr double kAllValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/// The nearest of all values, ties to an even code.
size_t nearest_code(double size) {
  size_t nearest = 0;
  for (size_t code = 1; code < 8; ++code) {
    const double before = std::fabs(kAllValues[nearest] - size), here = std::fabs(kAllValues[code] - size);
    if (here < before || (here == before && code % 2 == 0)) nearest = code;
  }
  return nearest;
}

std::vector<double> scales_of_e4m3() {
  std::vector<double> scales;
  for (int code = 0; code < 0x7f; ++code) scales.push_back(fp8_value(Fp8::e4m3, uint8_t(code)));
  return scales;
}
double nearest_scale(double x) {
  static const std::vector<double> all = scales_of_e4m3();
  size_t nearest = 0;
  for (size_t code = 1; code < all.size(); ++code) {
    const double before = std::fabs(all[nearest] - x), here = std::fabs(all[code] - x);
    if (here < before || (here == before && code % 2 == 0)) nearest = code;
  }
  return all[nearest];
}

/// Sizes of very different magnitude, a few of them special.
Storage fp4_kinds(Random& random, DType dtype, int64_t rows, int64_t cols, int64_t pad, bool finite = false) {
  Storage m = random.normal(dtype, rows, cols, pad);
  const Storage size = random.normal(DType::f32, rows, cols, 0, 6.0f),
                kind = random.normal(DType::f32, rows, cols);
  const float special[] = {0.0f, -0.0f, 1e-30f, NAN, INFINITY, -INFINITY};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const float k = kind.get(r, c);
      if (k > 1) m.set(r, c, std::ldexp(m.get(r, c), int(size.get(r, c))));
      if (k < -2.3f) m.set(r, c, special[size_t(std::fabs(size.get(r, c))) % (finite ? 3 : 6)]);
    }
  return m;
}

/// A GPU refuses the op.
bool is_refused(const QuantizeFp4& op) {
  if (candidates()[0].family != "cuda") return false;
  Backend& device = *candidates()[0].backend;
  const auto stream = device.create_stream();
  CHECK_THROWS_WITH(device.run(*stream, op), Catch::Contains("NVFP4 is computed on CPUs alone"));
  return true;
}

constexpr DType kFormatsOfFp4[] = {DType::f32, DType::bf16};
constexpr Fp4Noise kSomeNoise{.exists = true, .tensor = 0x1234567890abcdefu, .place = 7};

Storage seen_by_reference(const Storage& x, const QuantizeFp4& op) {
  Storage y = x;
  QuantizeFp4 of = op;
  of.x = x, of.y = y;
  const auto stream = reference().create_stream();
  reference().run(*stream, of);
  return y;
}

}  // namespace

TEST_CASE("FP4 codes are those of E2M1, and numbers become the nearest, ties the even code") {
  for (int code = 0; code < 8; ++code)
    for (const int sign : {0, 8}) {
      INFO("code " << code << " sign " << sign);
      const auto code_of = [&](float size) { return fp4_code(sign ? -size : size) - sign; };
      const float value = float(kAllValues[code]);
      CHECK(fp4_value(uint8_t(code | sign)) == (sign ? -value : value));
      CHECK(code_of(value) == code);
      CHECK(code_of(std::nextafter(value, 9.0f)) == code);
      if (code == 7) continue;
      const float middle = (value + float(kAllValues[code + 1])) / 2;
      CHECK(code_of(middle) == (code % 2 == 0 ? code : code + 1));
      CHECK(code_of(std::nextafter(middle, 0.0f)) == code);
      CHECK(code_of(std::nextafter(middle, 9.0f)) == code + 1);
    }
  for (const float large : {6.01f, 100.0f, 3e38f, INFINITY})
    CHECK((fp4_code(large) == 7 && fp4_code(-large) == 15));
}

TEST_CASE("a number drawn as FP4 is a neighbour, with the number as its mean") {
  for (uint32_t code = 0; code < 8; ++code)
    for (const uint32_t noise : {0u, 1u, 0x80000000u, ~0u})
      CHECK(fp4_drawn_code(float(kAllValues[code]), noise) == code);
  for (uint32_t code = 0; code + 1 < 8; ++code) {
    const double low = kAllValues[code], step = kAllValues[code + 1] - low;
    for (const int share : {1, 2, 333, 512, 700, 1023}) {  // of 1024
      INFO("code " << code << ", share " << share);
      const auto x = float(low + step * share / 1024);
      CHECK(fp4_drawn_code(x, 0) == code);
      CHECK(fp4_drawn_code(x, ~0u) == code + 1);
      int above = 0;
      for (uint32_t i = 0; i < 1024; ++i) {
        const uint32_t drawn = fp4_drawn_code(x, i << 22);
        CHECK((drawn == code || drawn == code + 1));
        above += drawn == code + 1;
      }
      CHECK(above == share);
    }
  }
}

TEST_CASE("the power of two of an FP4 operand is the least with which its largest scale fits") {
  for (int exponent = -80; exponent < 127; exponent += 3)
    for (const float mantissa : {1.0f, 1.3125f, std::nextafter(1.3125f, 2.0f), 1.9f}) {
      const float largest = std::ldexp(mantissa, exponent);
      int least = kLeastScale;
      while (std::ldexp(448.0 * 6, least) < double(largest)) ++least;
      CHECK(fp4_scale(largest) == least);
    }
  CHECK(fp4_scale(0) == kLeastScale);
}

TEST_CASE("NVFP4 values are the nearest that the scale of their group allows") {
  Random random(41);
  for (const Fp8Groups groups : {Fp8Groups::rows, Fp8Groups::columns, Fp8Groups::blocks}) {
    const Storage x = fp4_kinds(random, DType::f32, 40, 50, 0, true);
    const Storage y = seen_by_reference(x, {.groups = groups});
    double all = 0;
    for (int64_t r = 0; r < 40; ++r)
      for (int64_t c = 0; c < 50; ++c) all = std::max(all, std::fabs(double(x.get(r, c))));
    const double power = std::ldexp(1.0, fp4_scale(float(all)));
    std::set<double> scales;
    for (int64_t r = 0; r < 40; ++r)
      for (int64_t c = 0; c < 50; ++c) {
        const auto line = [](int64_t at, int64_t n) {
          return std::pair{at / 16 * 16, std::min(n, at / 16 * 16 + 16)};
        };
        const auto [r0, r1] = groups == Fp8Groups::rows ? std::pair{r, r + 1} : line(r, 40);
        const auto [c0, c1] = groups == Fp8Groups::columns ? std::pair{c, c + 1} : line(c, 50);
        double largest = 0;
        for (int64_t i = r0; i < r1; ++i)
          for (int64_t j = c0; j < c1; ++j) largest = std::max(largest, std::fabs(double(x.get(i, j))));
        const double scale = nearest_scale(float(largest / power) / 6.0f);
        scales.insert(scale);
        const double size = std::fabs(double(x.get(r, c))) / power;
        const double sought = scale == 0 ? 0 : kAllValues[nearest_code(float(size / scale))] * scale * power;
        if (std::fabs(y.get(r, c)) != float(sought) || std::signbit(y.get(r, c)) != std::signbit(x.get(r, c)))
          FAIL_CHECK(x.get(r, c) << " is " << y.get(r, c) << ", not " << sought);
        CHECK(float(bf16(y.get(r, c))) == y.get(r, c));
      }
    CHECK(scales.size() > 4);
  }
}

TEST_CASE("mixing 16 values is a Hadamard matrix behind signs, and keeps products") {
  constexpr uint32_t kSigns = 0b1010011100101101;
  for (int column = 0; column < 16; ++column) {
    float x[16] = {};
    x[column] = 1;
    fp4_mix(x, kSigns);
    for (uint32_t row = 0; row < 16; ++row) {
      const bool negative = (std::popcount(row & uint32_t(column)) + int(kSigns >> column & 1)) % 2 != 0;
      CHECK(x[row] == (negative ? -0.25f : 0.25f));
    }
  }
  float a[16], b[16];
  double before = 0, after = 0;
  for (int i = 0; i < 16; ++i)
    a[i] = float(i * i % 13 - 6), b[i] = float(i * 7 % 11 - 5), before += a[i] * b[i];
  fp4_mix(a, kSigns), fp4_mix(b, kSigns);
  for (int i = 0; i < 16; ++i) after += double(a[i]) * b[i];
  CHECK(after == before);
}

TEST_CASE("mixed rows are shared out before they are rounded, but for the last few") {
  Storage x(DType::f32, 19, 3, 0);
  x.fill(0);
  x.set(5, 1, 96), x.set(17, 1, 96);  // with scales that are exact
  const Storage y = seen_by_reference(x, {.groups = Fp8Groups::columns, .mixes = 0});
  for (int64_t r = 0; r < 19; ++r) {
    INFO("row " << r);
    CHECK(std::fabs(y.get(r, 1)) == (r < 16 ? 24 : r == 17 ? 96 : 0));
    CHECK((y.get(r, 0) == 0 && y.get(r, 2) == 0));
  }
}

TEST_CASE("every CPU sees the same NVFP4 values") {
  Random random(42);
  for (const DType dtype : kFormatsOfFp4)
    for (const Fp8Groups groups : {Fp8Groups::rows, Fp8Groups::columns, Fp8Groups::blocks})
      for (const bool draws : {false, true})
        for (const bool mixes : {false, true})
          for (const auto& [rows, cols] :
               {std::pair{1, 1}, {3, 128}, {16, 16}, {130, 131}, {257, 48}, {40, 300}}) {
            if (mixes && groups != Fp8Groups::columns) continue;
            INFO("groups " << int(groups) << " [" << rows << ", " << cols << "] " << name_of(dtype)
                           << " draws " << draws << " mixes " << mixes);
            const int64_t pad = rows % 2 ? 3 : 0;
            const Storage x = fp4_kinds(random, dtype, rows, cols, pad);
            Storage y(dtype, rows, cols, pad);
            y.fill(kPoison);
            QuantizeFp4 op{.x = x, .y = y, .groups = groups};
            if (draws) op.noise = kSomeNoise;
            if (mixes) op.mixes = 0xa5c3;
            if (is_refused(op)) return;
            compare({y}, {0}, [&](Backend& b, Stream& s, auto& o) {
              QuantizeFp4 of = op;
              of.y = o[0];
              b.run(s, of);
            });
            compare({x}, {0}, [&](Backend& b, Stream& s, auto& o) {
              QuantizeFp4 of = op;
              of.x = of.y = o[0];
              b.run(s, of);
            });
          }
}

TEST_CASE("experts and parts of NVFP4 operands are apart from others, with their own random numbers") {
  Random random(43);
  constexpr int64_t kRows = 90, kFirst = 33;
  Storage offsets(DType::f32, 1, 5, 0);
  const int32_t begins[] = {0, kFirst, kFirst, kFirst + 1, kRows};
  std::memcpy(offsets->data, begins, sizeof begins);
  Matrix list = offsets;
  list.dtype = DType::i32;
  const Storage x = random.normal(DType::f32, kRows, 40);
  for (const Fp8Groups groups : {Fp8Groups::rows, Fp8Groups::columns}) {
    const QuantizeFp4 op{.groups = groups, .offsets = list, .first_expert = 8, .noise = kSomeNoise};
    Storage y = x;
    QuantizeFp4 whole = op;
    whole.x = x, whole.y = y;
    if (is_refused(whole)) return;
    compare({y}, {0}, [&](Backend& b, Stream& s, auto& o) {
      QuantizeFp4 of = op;
      of.x = x, of.y = o[0];
      b.run(s, of);
    });
    const Storage all = seen_by_reference(x, op);
    // The same rows of the same expert elsewhere: on a rank that has it alone.
    Storage only(DType::f32, kRows - kFirst - 1, 40, 0), two(DType::f32, 1, 2, 0);
    for (int64_t r = 0; r < only->rows; ++r)
      for (int64_t c = 0; c < 40; ++c) only.set(r, c, x.get(kFirst + 1 + r, c));
    const int32_t ends[] = {0, int32_t(only->rows)};
    std::memcpy(two->data, ends, sizeof ends);
    Matrix pair = two;
    pair.dtype = DType::i32;
    const auto equal_with = [&](int64_t expert) {
      const Storage alone = seen_by_reference(
          only, {.groups = groups, .offsets = pair, .first_expert = expert, .noise = kSomeNoise});
      bool equal = true;
      for (int64_t r = 0; r < only->rows; ++r)
        for (int64_t c = 0; c < 40; ++c) equal &= alone.get(r, c) == all.get(kFirst + 1 + r, c);
      return equal;
    };
    CHECK(equal_with(11));
    CHECK(!equal_with(10));
  }
  Storage w = random.normal(DType::bf16, 96, 48), to = w;
  w.set(40, 3, 1000);
  if (is_refused({.x = w, .y = to, .groups = Fp8Groups::blocks, .parts = 3})) return;
  compare({to}, {0}, [&](Backend& b, Stream& s, auto& o) {
    b.run(s, QuantizeFp4{.x = w, .y = o[0], .groups = Fp8Groups::blocks, .parts = 3});
  });
  const Storage parts = seen_by_reference(w, {.groups = Fp8Groups::blocks, .parts = 3});
  w.set(40, 3, 0);
  const Storage other = seen_by_reference(w, {.groups = Fp8Groups::blocks, .parts = 3});
  for (int64_t r = 0; r < 96; ++r)
    for (int64_t c = 0; c < 48; ++c)
      if (r < 32 || r >= 64) CHECK(parts.get(r, c) == other.get(r, c));
}

TEST_CASE("NVFP4 operands have other random numbers by tensor and place, and their mean is right") {
  const auto drawn = [](Fp4Noise noise) {
    Storage x(DType::f32, 256, 256, 0);
    x.fill(0.3125f);
    for (int64_t r = 0; r < 256; ++r)
      for (int64_t c = 0; c < 256; c += 16) x.set(r, c, 6);  // the scale is 256 / 2^8
    return seen_by_reference(x, {.noise = noise});
  };
  const Storage one = drawn(kSomeNoise);
  int64_t above = 0, all = 0;
  for (int64_t r = 0; r < 256; ++r)
    for (int64_t c = 0; c < 256; ++c)
      if (c % 16 != 0) {
        CHECK((one.get(r, c) == 0 || one.get(r, c) == 0.5f));
        above += one.get(r, c) != 0, ++all;
      }
  CHECK(double(above) / double(all) == Approx(0.625).margin(tolerance::kShareDrawn));
  Fp4Noise other = kSomeNoise;
  other.place = 8;
  CHECK(drawn(other).content() != one.content());
  other = kSomeNoise, ++other.tensor;
  CHECK(drawn(other).content() != one.content());
  CHECK(drawn(kSomeNoise).content() == one.content());
}

}  // namespace trainctl::kernels::test
