// Goal: moments in bf16 and int8 hold what kernels/moments.h says, rounded with the right mean, and every
// rule with them gives the reference's bits on every device. Method: the formula in double precision; means
// over many updates; a second moment that only gets smaller; bit equality of boxes of many shapes.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

constexpr MomentCodes kSigned{.has_sign = true}, kUnsigned{.has_sign = false};

double value_in_double(int q, int most, double scale) { return scale * std::pow(double(q) / most, 4); }

/// A box whose moments are in a format, and all its memory.
struct Box {
  Storage master, param, grad;
  std::vector<uint8_t> first, second;
  std::vector<float> first_scales, second_scales;
  Moments format;

  Box(Random& random, Moments f, DType dtype, int64_t rows, int64_t cols, int64_t pad, bool two)
      : master(random.normal(DType::f32, rows, cols)),
        param(dtype, rows, cols, pad),
        grad(random.normal(DType::f32, rows, cols, pad)),
        format(f) {
    param.fill(kPoison);
    const int64_t n = rows * cols;
    const size_t bytes = size_t(n) * (f == Moments::bf16 ? 2 : 1);
    first.resize(bytes);
    if (two) second.resize(bytes);
    if (f == Moments::int8) {
      first_scales.resize(size_t(moment_blocks(n)));
      if (two) second_scales.resize(size_t(moment_blocks(n)));
    }
    const Storage m = random.normal(DType::f32, 1, n), v = random.normal(DType::f32, 1, n);
    for (int64_t begin = 0; begin < n; begin += kMomentBlock) {
      float squares[kMomentBlock];
      const int64_t count = std::min(kMomentBlock, n - begin);
      for (int64_t i = 0; i < count; ++i) squares[i] = v.f32()[begin + i] * v.f32()[begin + i];
      block(true, begin, count).write(m.f32() + begin, 1);
      if (two) block(false, begin, count).write(squares, 1);
    }
  }
  MomentBlock block(bool is_first, int64_t begin, int64_t n) {
    auto& scales = is_first ? first_scales : second_scales;
    return {is_first ? first.data() : second.data(),
            scales.empty() ? nullptr : scales.data(),
            format,
            {.has_sign = is_first},
            begin,
            n};
  }
  std::vector<float> read(bool is_first) {
    const int64_t n = master->count();
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t begin = 0; begin < n; begin += kMomentBlock)
      block(is_first, begin, std::min(kMomentBlock, n - begin)).read(values.data() + begin);
    return values;
  }
  UpdateBox view() {
    return {.master = master.f32(),
            .first_moment = first.data(),
            .second_moment = second.empty() ? nullptr : second.data(),
            .grad = grad.f32(),
            .grad_stride = grad->stride,
            .param = param,
            .weight_decay = 0.1f,
            .moments = format,
            .first_scales = first_scales.empty() ? nullptr : first_scales.data(),
            .second_scales = second_scales.empty() ? nullptr : second_scales.data()};
  }
  bool operator==(const Box& o) const {
    return master.content() == o.master.content() && param.content() == o.param.content() &&
           param.padding_untouched() && first == o.first && second == o.second &&
           first_scales == o.first_scales && second_scales == o.second_scales;
  }
};

template <typename O, typename Step>
void check_rule(const Step& step, bool two) {
  Random random(61);
  for (const Moments format : {Moments::bf16, Moments::int8})
    for (const DType dtype : kActivationTypes)
      for (const auto& [rows, cols, pad] : {std::tuple{1, 1, 0},
                                            {3, 17, 2},
                                            {70, 40, 0},
                                            {700, 1, 0},
                                            {1, 40001, 0},
                                            {40, 500, 3},
                                            {3, 20001, 1}}) {
        Box expected(random, format, dtype, rows, cols, pad, two);
        const Box before = expected;
        const auto s = reference().create_stream();
        const UpdateBox box[] = {expected.view()};
        reference().run(*s, O{.boxes = box, .step = step});
        CHECK_FALSE(expected == before);
        for (const Candidate& c : candidates()) {
          CAPTURE(c.name, word_of(format), rows, cols);
          Box got = before;
          const auto stream = c.backend->create_stream();
          const UpdateBox its[] = {got.view()};
          c.backend->run(*stream, O{.boxes = its, .step = step});
          stream->synchronize();
          CHECK(got == expected);
        }
      }
}

const AdamWStep kAdamW{.lr = 3e-4f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .eps = 1e-8f,
                       .grad_scale = 0.37f,
                       .bias_correction1 = 0.271f,
                       .bias_correction2 = 0.142625f,
                       .update = 3};

}  // namespace

TEST_CASE("a code is the formula's value, and the code of its value") {
  for (const MomentCodes codes : {kSigned, kUnsigned})
    for (const float scale : {1.0f, 3e-9f, 7e12f})
      for (int byte = 0; byte < 256; ++byte) {
        const int q = codes.has_sign ? int(int8_t(byte)) : byte;
        if (q == -128) continue;  // no value has it
        const float value = codes.value(uint8_t(byte), scale);
        const double expected = value_in_double(std::abs(q), codes.most(), scale);
        CHECK(std::abs(value) == Approx(expected).epsilon(tolerance::kOpF32));
        CHECK((value < 0) == (q < 0));
        for (const uint32_t update : {0u, 1u, 77u}) CHECK(codes.code(value, scale, update) == uint8_t(byte));
      }
}

TEST_CASE("a value becomes one of its neighbours, with the right mean") {
  Random random(62);
  const Storage x = random.normal(DType::f32, 1, 200, 0, 0.3f);
  constexpr int kUpdates = 4000;
  double worst_code = 0, worst_bf16 = 0;
  for (int i = 0; i < 200; ++i) {
    const float value = x.f32()[i];
    if (std::abs(value) > 1) continue;
    double sum = 0, sum_bf16 = 0;
    const int below = int(std::sqrt(std::sqrt(std::abs(value))) * 127);
    const double low = value_in_double(below, 127, 1), high = value_in_double(below + 1, 127, 1);
    for (uint32_t update = 0; update < kUpdates; ++update) {
      const float stored = kSigned.value(kSigned.code(value, 1, update), 1);
      const double size = std::abs(stored);
      CHECK(std::min(std::abs(size - low), std::abs(size - high)) < tolerance::kMomentCode);
      sum += stored;
      sum_bf16 += float(rounded_moment(value, update));
    }
    // A mean of 4000 has a deviation of at most half a step / sqrt(4000); five of them.
    worst_code = std::max(worst_code, std::abs(sum / kUpdates - value) / (high - low));
    worst_bf16 = std::max(worst_bf16, std::abs(sum_bf16 / kUpdates - value) / std::abs(value) * 128);
  }
  CHECK(worst_code < 5 * 0.5 / std::sqrt(double(kUpdates)));
  CHECK(worst_bf16 < 5 * 0.5 / std::sqrt(double(kUpdates)));
}

TEST_CASE("a second moment above zero never becomes zero, and numbers that are not finite stay so in bf16") {
  for (uint32_t update = 0; update < 100; ++update)
    for (const float x : {1e-30f, 1e-12f, 1e-3f, 1.0f}) CHECK(kUnsigned.code(x, 1, update) > 0);
  CHECK(kUnsigned.code(0, 1, 1) == 0);
  CHECK(kSigned.code(-0.0f, 0, 1) == 0);
  CHECK(std::isinf(float(rounded_moment(INFINITY, 5))));
  CHECK(std::isnan(float(rounded_moment(NAN, 5))));
}

TEST_CASE("a second moment gets smaller by 0.001 of itself a step, which the nearest bf16 would not") {
  const float one = float(bf16(1.37f)), next = 0.999f * one;
  REQUIRE(float(bf16(next)) == one);
  Random random(63);
  for (const Moments format : {Moments::bf16, Moments::int8}) {
    Box box(random, format, DType::f32, 16, 64, 0, true);
    box.grad.fill(0);
    const std::vector<float> before = box.read(false);
    AdamWStep step = kAdamW;
    step.beta2 = 0.999f;
    const auto s = reference().create_stream();
    for (step.update = 1; step.update <= 1000; ++step.update) {
      const UpdateBox boxes[] = {box.view()};
      reference().run(*s, AdamW{.boxes = boxes, .step = step});
    }
    const std::vector<float> after = box.read(false);
    double sum = 0, sum_before = 0;
    for (size_t i = 0; i < after.size(); ++i) sum += after[i], sum_before += before[i];
    CAPTURE(word_of(format), sum / sum_before);
    CHECK(sum / sum_before == Approx(std::pow(0.999, 1000)).epsilon(0.03));
  }
}

TEST_CASE("with moments in bf16 and int8 each rule equals the reference bit for bit") {
  check_rule<AdamW>(kAdamW, true);
  check_rule<Lion>(LionStep{.lr = 1e-3f, .grad_scale = 0.37f, .update = 4}, false);
  check_rule<Sgd>(SgdStep{.lr = 1e-2f, .grad_scale = 0.37f, .update = 5}, false);
}

TEST_CASE("moments of zeros and of sizes far apart equal the reference bit for bit") {
  Random random(65);
  constexpr int64_t kValues = 5 * kMomentBlock + 37;
  for (const Moments format : {Moments::bf16, Moments::int8}) {
    Box expected(random, format, DType::f32, 1, kValues, 0, true);
    for (std::vector<uint8_t>* moment : {&expected.first, &expected.second})
      std::fill(moment->begin(), moment->end(), uint8_t(0));
    float* const grad = expected.grad.f32();
    for (int64_t i = 0; i < kValues; ++i) {
      constexpr float kSizes[] = {0, -0.0f, 1e-18f, 3e-12f, -7e-5f, 1, -2, 5e9f, -1e17f};
      const int64_t block = i / kMomentBlock;  // the second is of zeros, the third of two sizes only
      grad[i] = block == 1 ? 0.0f : kSizes[size_t(block == 2 ? 5 + i % 2 : (i * 7 + block) % 9)];
    }
    const Box before = expected;
    const auto s = reference().create_stream();
    const UpdateBox box[] = {expected.view()};
    reference().run(*s, AdamW{.boxes = box, .step = kAdamW});
    CHECK_FALSE(expected == before);
    for (const Candidate& c : candidates()) {
      CAPTURE(c.name, word_of(format));
      Box got = before;
      const auto stream = c.backend->create_stream();
      const UpdateBox its[] = {got.view()};
      c.backend->run(*stream, AdamW{.boxes = its, .step = kAdamW});
      stream->synchronize();
      CHECK(got == expected);
    }
  }
}

TEST_CASE("adamw with moments in fewer bits is the formula in double, from what they hold") {
  Random random(64);
  for (const Moments format : {Moments::bf16, Moments::int8}) {
    Box box(random, format, DType::f32, 30, 40, 0, true);
    const std::vector<float> m = box.read(true), v = box.read(false);
    const std::vector<float> w(box.master.f32(), box.master.f32() + 1200);
    const auto s = reference().create_stream();
    const UpdateBox boxes[] = {box.view()};
    reference().run(*s, AdamW{.boxes = boxes, .step = kAdamW});
    const std::vector<float> m_after = box.read(true), v_after = box.read(false);
    // How far a stored value is from the computed one, in steps between neighbours.
    const auto steps = [&](double stored, double computed, const std::vector<float>& scales, size_t i,
                           int most) {
      if (format == Moments::bf16) return std::abs(stored / computed - 1) * 128;
      const double scale = scales[i / size_t(kMomentBlock)];
      const auto place = [&](double x) { return std::pow(std::abs(x) / scale, 0.25) * most; };
      return std::abs(place(stored) - place(computed));
    };
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = double(box.grad.f32()[i]) * double(kAdamW.grad_scale);
      const double m1 = 0.9 * m[i] + 0.1 * g, v1 = 0.95 * v[i] + 0.05 * g * g;
      const double decayed = w[i] - 3e-4 * 0.1 * w[i];
      const double expected = decayed - 3e-4 * (m1 / 0.271) / (std::sqrt(v1 / 0.142625) + 1e-8);
      CHECK(box.master.f32()[i] == Approx(expected).epsilon(tolerance::kOpF32).margin(tolerance::kOpF32));
      CHECK(steps(m_after[i], m1, box.first_scales, i, 127) < 1 + tolerance::kMomentSteps);
      CHECK(steps(v_after[i], v1, box.second_scales, i, 255) < 1 + tolerance::kMomentSteps);
    }
  }
}

}  // namespace trainctl::kernels::test
