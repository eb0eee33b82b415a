// Goal: FP8 values and scales are what the formats say, and every device sees the same of an operand as the
// reference. Method: all 256 codes, the middle between any two neighbours and the numbers next to it; groups
// whose scales are known by hand; random matrices of ragged shapes with zeros, tiny and huge numbers and
// what is not finite, bit for bit.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

constexpr Fp8 kFormats[] = {Fp8::e4m3, Fp8::e5m2};

/// All finite values of a format that are not below zero, in order; their codes are 0, 1, 2, ..
std::vector<float> finite_values(Fp8 format) {
  std::vector<float> values;
  for (int code = 0; code < 0x80; ++code)
    if (const float v = fp8_value(format, uint8_t(code)); std::isfinite(v)) values.push_back(v);
  return values;
}

/// Of a row, or of a column.
constexpr int64_t kSizesOfGroups[] = {kFp8Group, 32};

/// Numbers of all kinds, of very different sizes, a few of them special.
Storage all_kinds(Random& random, DType dtype, int64_t rows, int64_t cols, int64_t pad) {
  Storage m = random.normal(dtype, rows, cols, pad);
  const Storage size = random.normal(DType::f32, rows, cols, 0, 40.0f),
                kind = random.normal(DType::f32, rows, cols);
  const float special[] = {0.0f, -0.0f, NAN, INFINITY, -INFINITY, 1e-45f, -3e-39f, 3e38f, 448, 449};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const float k = kind.get(r, c);
      if (k > 1) m.set(r, c, std::ldexp(m.get(r, c), int(size.get(r, c))));
      if (k < -2) m.set(r, c, special[size_t(std::fabs(size.get(r, c))) % std::size(special)]);
    }
  return m;
}

}  // namespace

TEST_CASE("FP8 codes are those of the formats") {
  const std::vector<float> e4m3 = finite_values(Fp8::e4m3), e5m2 = finite_values(Fp8::e5m2);
  REQUIRE(e4m3.size() == 0x7f);  // 0x7f is NaN
  REQUIRE(e5m2.size() == 0x7c);  // 0x7c is infinity
  CHECK((e4m3[1] == 0x1p-9f && e4m3[8] == 0x1p-6f && e4m3[0x38] == 1 && e4m3[0x39] == 1.125f &&
         e4m3[0x7e] == 448));
  CHECK((e5m2[1] == 0x1p-16f && e5m2[4] == 0x1p-14f && e5m2[0x3c] == 1 && e5m2[0x3d] == 1.25f &&
         e5m2[0x7b] == 57344));
  CHECK(fp8_value(Fp8::e5m2, 0x7c) == INFINITY);
  CHECK(fp8_value(Fp8::e5m2, 0xfc) == -INFINITY);
  for (const uint8_t nan : {0x7f, 0xff}) CHECK(std::isnan(fp8_value(Fp8::e4m3, nan)));
  for (const uint8_t nan : {0x7d, 0x7e, 0x7f, 0xff}) CHECK(std::isnan(fp8_value(Fp8::e5m2, nan)));
  for (const Fp8 format : kFormats) {
    INFO(word_of(format));
    for (const float nan : {NAN, -NAN}) CHECK(std::isnan(fp8_value(format, fp8_code(format, nan))));
    for (const float large : {INFINITY, 3e38f, 57345.0f, 1e5f})
      CHECK(fp8_value(format, fp8_code(format, -large)) == -finite_values(format).back());
  }
}

TEST_CASE("FP8 rounds to the nearest value, ties to even") {
  for (const Fp8 format : kFormats) {
    const std::vector<float> values = finite_values(format);
    for (size_t code = 0; code < values.size(); ++code)
      for (const int sign : {0, 0x80}) {
        INFO(word_of(format) << " code " << code << " sign " << sign);
        const auto code_of = [&](float size) { return fp8_code(format, sign ? -size : size) - sign; };
        CHECK(code_of(values[code]) == int(code));
        CHECK(std::signbit(fp8_value(format, uint8_t(code | sign))) == (sign != 0));
        if (code + 1 == values.size()) continue;
        const float middle = (values[code] + values[code + 1]) / 2;
        CHECK(code_of(middle) == int(code % 2 == 0 ? code : code + 1));
        CHECK(code_of(std::nextafter(middle, 0.0f)) == int(code));
        CHECK(code_of(std::nextafter(middle, 1e6f)) == int(code + 1));
        CHECK(code_of(std::nextafter(values[code], 1e6f)) == int(code));
      }
  }
}

TEST_CASE("the scale of FP8 is the least power of two with which the largest value fits") {
  CHECK(fp8_scale(Fp8::e4m3, 448) == 0);
  CHECK(fp8_scale(Fp8::e4m3, std::nextafter(448.0f, 1e6f)) == 1);
  CHECK(fp8_scale(Fp8::e4m3, 1) == -8);
  CHECK(fp8_scale(Fp8::e4m3, 1.75f) == -8);
  CHECK(fp8_scale(Fp8::e4m3, 1.76f) == -7);
  CHECK(fp8_scale(Fp8::e5m2, 1) == -15);
  for (const Fp8 format : kFormats) {
    CHECK(fp8_scale(format, 0) == kLeastScale);
    CHECK(fp8_scale(format, 3e38f) > 100);
  }
}

// Slow and by another way: the scale by trying, the value by looking at all there are.
TEST_CASE("MXFP8 values are the nearest of those that the least scale without overflow allows") {
  const std::vector<float> values = finite_values(Fp8::e4m3);
  const auto stream = reference().create_stream();
  constexpr int64_t kMx = 32;
  std::vector<float> largest;
  for (int exponent = -126; exponent < 128; ++exponent)
    for (const float mantissa : {1.0f, 1.75f, std::nextafter(1.75f, 2.0f), 1.99f})
      largest.push_back(std::ldexp(mantissa, exponent));
  Storage x(DType::f32, int64_t(largest.size()), kMx, 0),
      upright(DType::f32, kMx, int64_t(largest.size()), 0);
  Random random(37);
  const Storage part = random.normal(DType::f32, x->rows, kMx);
  std::vector<int> scales;
  for (int64_t r = 0; r < x->rows; ++r) {
    int e = kLeastScale;
    while (std::ldexp(448.0, e) < double(largest[size_t(r)])) ++e;
    scales.push_back(e);
    for (int64_t c = 0; c < kMx; ++c) {
      const size_t code = size_t(r * 31 + c * 7) % (values.size() - 1);
      const double middle = (double(values[code]) + values[code + 1]) / 2;
      const float size = c == 5  ? largest[size_t(r)]
                         : c % 2 ? std::min(std::fabs(part.get(r, c)), 1.0f) * largest[size_t(r)]
                                 : std::min(float(std::ldexp(middle, e)), largest[size_t(r)]);
      x.set(r, c, c % 3 ? size : -size), upright.set(c, r, x.get(r, c));
    }
  }
  Storage y = x, down = upright;
  reference().run(*stream, Quantize{.x = x, .y = y, .group = kMx});
  reference().run(*stream, Quantize{.x = upright, .y = down, .groups = Fp8Groups::columns, .group = kMx});
  for (int64_t r = 0; r < x->rows; ++r) {
    INFO("largest " << largest[size_t(r)]);
    CHECK((scales[size_t(r)] >= -127 && scales[size_t(r)] <= 127));  // E8M0
    for (int64_t c = 0; c < kMx; ++c) {
      const double size = std::ldexp(std::fabs(double(x.get(r, c))), -scales[size_t(r)]);
      size_t nearest = 0;
      for (size_t code = 1; code < values.size(); ++code) {
        const double before = std::fabs(values[nearest] - size), here = std::fabs(values[code] - size);
        if (here < before || (here == before && code % 2 == 0)) nearest = code;
      }
      const auto sought = float(std::copysign(std::ldexp(values[nearest], scales[size_t(r)]), x.get(r, c)));
      if (y.get(r, c) != sought || down.get(c, r) != sought)
        FAIL_CHECK(x.get(r, c) << " is " << y.get(r, c) << " and " << down.get(c, r) << ", not " << sought);
    }
  }
}

TEST_CASE("each group of FP8 values has its own scale") {
  std::vector<Backend*> backends = {&reference()};
  for (const Candidate& c : candidates()) backends.push_back(c.backend.get());
  Storage x(DType::f32, 130, 130, 0);
  x.fill(1);  // too small beside 2^28: zero where one scale is for both
  x.set(0, 0, 0x1p28f), x.set(129, 129, 0x1p28f);
  for (Backend* b : backends) {
    INFO(b->name());
    const auto stream = b->create_stream();
    const auto zeros = [&](const Op& op, const Storage& y) {
      b->run(*stream, op);
      std::vector<std::pair<int, int>> at;  // of a few places
      for (const auto& [r, c] :
           {std::pair{0, 127}, {0, 128}, {127, 0}, {128, 0}, {1, 1}, {129, 128}, {128, 129}}) {
        CHECK((y.get(r, c) == 0 || y.get(r, c) == 1));
        if (y.get(r, c) == 0) at.emplace_back(r, c);
      }
      CHECK((y.get(0, 0) == 0x1p28f && y.get(129, 129) == 0x1p28f));
      return at;
    };
    using Places = std::vector<std::pair<int, int>>;
    Storage y = x;
    CHECK(zeros(Quantize{.x = x, .y = y, .groups = Fp8Groups::rows}, y) == Places{{0, 127}, {129, 128}});
    CHECK(zeros(Quantize{.x = x, .y = y, .groups = Fp8Groups::columns}, y) == Places{{127, 0}, {128, 129}});
    CHECK(zeros(Quantize{.x = x, .y = y, .groups = Fp8Groups::whole}, y).size() == 7);
    Storage w = x;
    CHECK(zeros(QuantizeWeight{.w = w}, w) == Places{{0, 127}, {127, 0}, {1, 1}, {129, 128}, {128, 129}});
    w = x;
    CHECK(zeros(QuantizeWeight{.w = w, .groups = Fp8Groups::whole}, w).size() == 7);
    w = x;  // of 65 rows each
    CHECK(zeros(QuantizeWeight{.w = w, .groups = Fp8Groups::whole, .parts = 2}, w).size() == 7);
  }
}

TEST_CASE("every device sees the same FP8 values") {
  Random random(33);
  for (const DType dtype : kActivationTypes)
    for (const Fp8 format : kFormats)
      for (const Fp8Groups groups : {Fp8Groups::rows, Fp8Groups::columns, Fp8Groups::whole})
        for (const int64_t group : kSizesOfGroups)
          for (const auto& [rows, cols] :
               {std::pair{1, 1}, {3, 128}, {128, 5}, {130, 131}, {257, 48}, {40, 300}, {129, 256}})
            for (const int64_t pad : {0, 3}) {
              INFO(word_of(format) << " groups " << int(groups) << " of " << group << " [" << rows << ", "
                                   << cols << "] " << name_of(dtype) << " gap " << pad);
              const Storage x = all_kinds(random, dtype, rows, cols, pad);
              Storage y(dtype, rows, cols, pad);
              y.fill(kPoison);
              compare({y}, {0}, [&](Backend& b, Stream& s, auto& o) {
                b.run(s, Quantize{.x = x, .y = o[0], .format = format, .groups = groups, .group = group});
              });
            }
}

TEST_CASE("rows of experts have FP8 groups apart from others") {
  Random random(34);
  constexpr int64_t kRows = 300;
  Storage offsets(DType::f32, 1, 5, 0);
  const int32_t begins[] = {0, 130, 130, 131, kRows};
  std::memcpy(offsets->data, begins, sizeof begins);
  Matrix list = offsets;
  list.dtype = DType::i32;
  for (const Fp8Groups groups : {Fp8Groups::rows, Fp8Groups::columns, Fp8Groups::whole}) {
    const Storage x = random.normal(DType::f32, kRows, 40);
    Storage y = x;
    compare({y}, {0}, [&](Backend& b, Stream& s, auto& o) {
      b.run(s, Quantize{.x = x, .y = o[0], .groups = groups, .offsets = list});
    });
    for (const Candidate& candidate : candidates()) {
      const auto stream = candidate.backend->create_stream();
      Storage one = x, all = x;
      candidate.backend->run(*stream, Quantize{.x = x, .y = all, .groups = groups, .offsets = list});
      const Matrix of_last = Matrix(one).row_range(131, kRows - 131);
      candidate.backend->run(*stream, Quantize{.x = of_last, .y = of_last, .groups = groups});
      for (int64_t r = 131; r < kRows; ++r) CHECK(one.get(r, 7) == all.get(r, 7));
    }
  }
}

TEST_CASE("lines of FP8 weights begin with each part, and the weight stays as it is") {
  Random random(38);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Fp8Groups groups : {Fp8Groups::rows, Fp8Groups::columns})
      for (const auto& [rows, cols, parts] : {std::tuple{64, 96, 1}, {96, 64, 2}, {300, 130, 3}}) {
        INFO("groups " << int(groups) << " [" << rows << ", " << cols << "] " << name_of(dtype));
        const Storage w = all_kinds(random, dtype, rows, cols, 0);
        Storage to(dtype, rows, cols, 0), by_hand = to;
        to.fill(kPoison);
        const Storage before = w;
        compare({to}, {0}, [&](Backend& b, Stream& s, auto& o) {
          b.run(s, QuantizeWeight{.w = w, .groups = groups, .parts = parts, .to = o[0], .group = 32});
        });
        CHECK(w.content() == before.content());
        const auto stream = reference().create_stream();
        for (int64_t part = 0; part < parts; ++part) {
          const auto of = [&](const Matrix& m) { return m.row_range(part * (rows / parts), rows / parts); };
          reference().run(*stream, Quantize{.x = of(w), .y = of(by_hand), .groups = groups, .group = 32});
        }
        reference().run(*stream,
                        QuantizeWeight{.w = w, .groups = groups, .parts = parts, .to = to, .group = 32});
        CHECK(to.content() == by_hand.content());
      }
}

// Not in f16, in which small scales times small values are not exact: a job has f16 or FP8.
TEST_CASE("FP8 weights are the same on every device, and the same again") {
  Random random(35);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Fp8Groups groups : {Fp8Groups::blocks, Fp8Groups::whole})
      for (const auto& [rows, cols, parts] :
           {std::tuple{128, 128, 1}, {256, 384, 2}, {300, 130, 3}, {1, 7, 1}}) {
        INFO("groups " << int(groups) << " [" << rows << ", " << cols << "] " << name_of(dtype));
        const Storage w = all_kinds(random, dtype, rows, cols, 0);
        const auto once = [&](Backend& b, Stream& s, auto& o) {
          b.run(s, QuantizeWeight{.w = o[0], .groups = groups, .parts = parts});
        };
        compare({w}, {0}, once);
        const auto stream = reference().create_stream();
        std::vector<Storage> first = {w};
        once(reference(), *stream, first);
        compare(first, {0}, once);
        std::vector<Storage> second = first;
        once(reference(), *stream, second);
        CHECK(second[0].content() == first[0].content());
      }
}

TEST_CASE("FP8 values are exact in bf16") {
  Random random(36);
  const auto stream = reference().create_stream();
  const Storage x = all_kinds(random, DType::f32, 64, 256, 0);
  for (const Fp8 format : kFormats)
    for (const Fp8Groups groups : {Fp8Groups::rows, Fp8Groups::columns, Fp8Groups::whole}) {
      Storage y = x;
      reference().run(*stream, Quantize{.x = x, .y = y, .format = format, .groups = groups});
      for (int64_t r = 0; r < 64; ++r)
        for (int64_t c = 0; c < 256; ++c)
          if (std::isfinite(x.get(r, c))) CHECK(float(bf16(y.get(r, c))) == y.get(r, c));
    }
}

}  // namespace trainctl::kernels::test
