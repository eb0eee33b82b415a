// Goal: weights without master weights are rounded as kernels/weight_rounding.h says: with exactly the right
// mean, and with bits that do not depend on how a parameter is cut; every rule with them gives the
// reference's bits on every device. To the nearest, small updates would be lost. Method: the hash inverted,
// so that it is seen to be another number for each index; means over a million elements; updates of many
// shapes, moments and cuts.
#include "kernels/weight_rounding.h"
#include "support.h"

namespace trainctl::kernels::test {

namespace {

constexpr uint64_t kParameter = 0x243f6a8885a308d3u;

/// x with factor * x = 1 modulo 2^32.
uint32_t inverse_of(uint32_t factor) {
  uint32_t x = factor;  // right in 3 bits; each round doubles them
  for (int i = 0; i < 5; ++i) x *= 2 - factor * x;
  return x;
}
uint32_t without_shift(uint32_t h, int shift) {
  uint32_t x = h;
  for (int bits = shift; bits < 32; bits += shift) x = h ^ (x >> shift);
  return x;
}
/// The index whose noise is `noise`.
uint32_t index_of(const RoundingKey& key, uint32_t noise) {
  uint32_t h = without_shift(noise, 15) * inverse_of(0x2c1b3c6du);
  h = without_shift(h ^ key.high, 16) * inverse_of(0xc2b2ae35u);
  h = without_shift(h, 13) * inverse_of(0x85ebca6bu);
  return (without_shift(h, 16) - key.low) * inverse_of(0x9e3779b9u);
}

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

/// A parameter of rows x cols without master weights, and its moments.
struct Weights {
  Storage param, grad;
  std::vector<float> first, second;
  std::vector<uint8_t> small_first, small_second;
  std::vector<float> first_scales, second_scales;
  Moments format;
  int64_t row_step = 0, first_index = 0;

  Weights(Random& random, DType dtype, Moments f, int64_t rows, int64_t cols, int64_t pad, int64_t index,
          int64_t step)
      : param(random.normal(dtype, rows, cols, pad)),
        grad(random.normal(DType::f32, rows, cols, pad)),
        format(f),
        row_step(step),
        first_index(index) {
    const auto n = size_t(rows * cols);
    first.resize(n), second.resize(n);
    if (f == Moments::f32) return;
    small_first.resize(2 * n), small_second.resize(2 * n);
    first_scales.resize(size_t(moment_blocks(rows * cols)));
    second_scales = first_scales;
  }
  UpdateBox view(bool two) {
    const bool f32 = format == Moments::f32, int8 = format == Moments::int8;
    void* const of_second = f32 ? static_cast<void*>(second.data()) : small_second.data();
    return {.first_moment = f32 ? static_cast<void*>(first.data()) : small_first.data(),
            .second_moment = two ? of_second : nullptr,
            .grad = grad.f32(),
            .grad_stride = grad->stride,
            .param = param,
            .weight_decay = 0.1f,
            .moments = format,
            .first_scales = int8 ? first_scales.data() : nullptr,
            .second_scales = int8 && two ? second_scales.data() : nullptr,
            .rounding = kParameter,
            .first = first_index,
            .row_step = row_step};
  }
  bool operator==(const Weights& o) const {
    return param.content() == o.param.content() && param.padding_untouched() && first == o.first &&
           second == o.second && small_first == o.small_first && small_second == o.small_second &&
           first_scales == o.first_scales && second_scales == o.second_scales;
  }
};

/// The devices that update without master weights: none on a GPU, real or emulated.
std::vector<const Candidate*> host_candidates() {
  std::vector<const Candidate*> hosts;
  for (const Candidate& c : candidates())
    if (c.family != "cuda") hosts.push_back(&c);
  return hosts;
}

template <typename O, typename Step>
void update(Backend& backend, const UpdateBox& box, const Step& step) {
  const auto stream = backend.create_stream();
  const UpdateBox boxes[] = {box};
  backend.run(*stream, O{.boxes = boxes, .step = step});
  stream->synchronize();
}

template <typename O, typename Step>
void check_devices(const Step& step, bool two) {
  Random random(71);
  constexpr int64_t kEdge = int64_t{1} << 32;
  struct Shape {
    int64_t rows, cols, pad, first, row_step;
  };
  for (const Moments format : {Moments::f32, Moments::bf16, Moments::int8})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const Shape& s : {Shape{1, 1, 0, 0, 1},
                             {3, 17, 2, 40, 60},
                             {70, 40, 0, 0, 40},
                             {70, 40, 0, 80, 120},
                             {700, 1, 0, 3, 1},
                             {1, 40001, 0, kEdge - 777, 40001},
                             {40, 500, 3, kEdge - 1000, 500},
                             {3, 20001, 1, 5, 30000}}) {
        CAPTURE(word_of(format), name_of(dtype), s.rows, s.cols, s.row_step);
        Weights expected(random, dtype, format, s.rows, s.cols, s.pad, s.first, s.row_step);
        const Weights before = expected;
        update<O>(reference(), expected.view(two), step);
        CHECK_FALSE(expected == before);
        for (const Candidate* c : host_candidates()) {
          CAPTURE(c->name);
          Weights got = before;
          update<O>(*c->backend, got.view(two), step);
          CHECK(got == expected);
        }
      }
}

constexpr AdamWStep kRoundedStep{
    .lr = 3e-3f, .grad_scale = 0.37f, .bias_correction1 = 0.271f, .bias_correction2 = 0.142625f, .update = 3};

}  // namespace

TEST_CASE("each index of a key has a noise of its own") {
  std::mt19937 random(5);
  for (const uint64_t index : {uint64_t{0}, uint64_t{1} << 32, uint64_t{77} << 33})
    for (const uint32_t update : {0u, 1u, 40000u}) {
      const RoundingKey key = rounding_key(kParameter, update, index);
      for (int i = 0; i < 1000; ++i) {
        const auto noise = uint32_t(random());
        CHECK(weight_noise(key, index_of(key, noise)) == noise);
      }
    }
}

TEST_CASE("weights are rounded to a neighbour with the right mean, by parameter, update and index") {
  constexpr uint32_t kElements = 1 << 20;
  constexpr uint32_t kOne = 0x3f800000;
  for (const uint32_t lost : {0u, 1u, 0x100u, 0x4000u, 0x8000u, 0xc123u, 0xffffu}) {
    const float value = float_of(kOne + lost);
    uint32_t up = 0;
    const RoundingKey key = rounding_key(kParameter, 9, 0);
    for (uint32_t i = 0; i < kElements; ++i) {
      const uint16_t bits = rounded_weight(value, weight_noise(key, i)).bits;
      if (bits != 0x3f80 && bits != 0x3f81) FAIL("no neighbour");
      up += bits == 0x3f81;
    }
    const double share = lost / 65536.0, expected = share * kElements;
    CAPTURE(lost, up, expected);
    CHECK(std::abs(up - expected) <= 4 * std::sqrt(expected * (1 - share)));
    // As far from zero below it, by the same numbers.
    CHECK(float(rounded_weight(-value, weight_noise(key, 5))) ==
          -float(rounded_weight(value, weight_noise(key, 5))));
  }
  // What differs in one of the three has other numbers: those of one say nothing of those of the other.
  const RoundingKey of = rounding_key(kParameter, 9, 0);
  for (const RoundingKey& other : {rounding_key(kParameter + 1, 9, 0), rounding_key(kParameter, 10, 0),
                                   rounding_key(kParameter, 9, uint64_t{1} << 32)}) {
    uint32_t both = 0;
    for (uint32_t i = 0; i < kElements; ++i)
      both += (weight_noise(of, i) & 0x8000) != 0 && (weight_noise(other, i) & 0x8000) != 0;
    CHECK(std::abs(both - 0.25 * kElements) < 4 * std::sqrt(0.25 * 0.75 * kElements));
  }
  for (const float kept : {INFINITY, -INFINITY, 0.0f, -0.0f, 1.5f, -0x1p-120f})
    CHECK(std::bit_cast<uint32_t>(float(rounded_weight(kept, 0xffff))) == std::bit_cast<uint32_t>(kept));
  CHECK(std::isnan(float(rounded_weight(NAN, 0xffff))));
}

TEST_CASE("updates below half a step move weights that are rounded at random, and none to the nearest") {
  constexpr int64_t kValues = 4096;
  constexpr int kUpdates = 256;
  constexpr float kRate = 0x1p-11f;  // a weight of 1 has steps of 2^-7 above it, of 2^-8 below
  Random random(73);
  Weights w(random, DType::bf16, Moments::f32, 1, kValues, 0, 0, kValues);
  std::vector<bf16> nearest(size_t(kValues), bf16(1));
  for (int64_t i = 0; i < kValues; ++i) w.param.set(0, i, 1), w.grad.set(0, i, 1);
  for (uint32_t i = 1; i <= kUpdates; ++i) {
    UpdateBox box = w.view(false);
    box.weight_decay = 0;
    update<Sgd>(reference(), box, SgdStep{.lr = kRate, .momentum = 0, .update = i});
    for (bf16& x : nearest) x = bf16(float(x) - kRate);
  }
  double mean = 0;
  for (int64_t i = 0; i < kValues; ++i) {
    CHECK(float(nearest[size_t(i)]) == 1);
    mean += double(w.param.get(0, i)) / kValues;
  }
  // Each update adds a variance of at most (step / 2)^2.
  const double expected = 1 - double(kUpdates) * double(kRate);
  CHECK(std::abs(mean - expected) < 4 * 0x1p-9 * std::sqrt(double(kUpdates) / kValues));
}

TEST_CASE("adamw, lion and sgd without master weights have the reference's bits") {
  check_devices<AdamW>(kRoundedStep, true);
  check_devices<Lion>(LionStep{.lr = 3e-3f, .update = 8}, false);
  check_devices<Sgd>(SgdStep{.lr = 3e-3f, .update = 9}, false);
}

TEST_CASE("an update without master weights is the one with them, rounded at random") {
  Random random(74);
  Weights w(random, DType::bf16, Moments::f32, 30, 40, 0, 0, 40);
  Storage master(DType::f32, 30, 40, 0);
  for (int64_t i = 0; i < 1200; ++i) master.f32()[i] = w.param.get(i / 40, i % 40);
  Weights with = w;
  UpdateBox box = with.view(true);
  box.master = master.f32();
  update<AdamW>(reference(), box, kRoundedStep);
  update<AdamW>(reference(), w.view(true), kRoundedStep);
  CHECK(w.first == with.first);
  CHECK(w.second == with.second);
  int differ = 0;
  for (int64_t i = 0; i < 1200; ++i) {
    const RoundingKey key = rounding_key(kParameter, kRoundedStep.update, uint64_t(i));
    CHECK(w.param.get(i / 40, i % 40) ==
          float(rounded_weight(master.f32()[i], weight_noise(key, uint32_t(i)))));
    differ += w.param.get(i / 40, i % 40) != with.param.get(i / 40, i % 40);
  }
  CHECK(differ > 100);
}

TEST_CASE("a parameter has the same bits in whatever boxes it is updated") {
  constexpr int64_t kRows = 48, kCols = 96;
  Random random(75);
  const Weights whole(random, DType::bf16, Moments::f32, kRows, kCols, 0, 0, kCols);
  for (const Candidate* c : host_candidates()) {
    CAPTURE(c->name);
    Weights expected = whole;
    update<Sgd>(*c->backend, expected.view(false), SgdStep{.lr = 1e-3f, .update = 4});
    for (const auto& [rows, cols] : {std::pair{kRows / 3, kCols}, {kRows, kCols / 4}, {kRows / 2, kCols / 2}})
      for (int64_t r = 0; r < kRows; r += rows)
        for (int64_t col = 0; col < kCols; col += cols) {
          // As a rank has it, alone: a matrix of its own.
          Weights part(random, DType::bf16, Moments::f32, rows, cols, 0, r * kCols + col, kCols);
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < cols; ++j) {
              part.param.set(i, j, whole.param.get(r + i, col + j));
              part.grad.set(i, j, whole.grad.get(r + i, col + j));
            }
          update<Sgd>(*c->backend, part.view(false), SgdStep{.lr = 1e-3f, .update = 4});
          bool same = true;
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < cols; ++j)
              same &= part.param.get(i, j) == expected.param.get(r + i, col + j);
          CHECK(same);
        }
  }
}

}  // namespace trainctl::kernels::test
