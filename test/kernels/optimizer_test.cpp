// Goal: each rule of updates is the same IEEE operations for every element, wherever a shard begins; norms are summed by shape
// alone. Method: bit equality with the reference, and of a box cut in two with the whole box; the formulas in double precision.
#include "support.h"

namespace trainctl::kernels::test {

namespace {
const AdamWStep kStep{.lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 0.37f,
                      .bias_correction1 = 0.271f, .bias_correction2 = 0.142625f};

UpdateBox box_of(const std::vector<Storage>& state, const Storage& grad, int64_t first, int64_t rows) {
  const Matrix param = state[3]->row_range(first, rows);
  const int64_t at = first * state[3]->cols;
  return {state[0].f32() + at,
          state[1].f32() + at,
          state[2].f32() + at,
          grad.f32() + first * grad->stride,
          grad->stride,
          param,
          0.1f,
          0.7f};
}

std::vector<Storage> random_state(Random& random, DType dtype, int64_t rows, int64_t cols) {
  std::vector<Storage> state = {random.normal(DType::f32, rows, cols), random.normal(DType::f32, rows, cols),
                                random.normal(DType::f32, rows, cols), Storage(dtype, rows, cols, 5)};
  for (int64_t i = 0; i < rows * cols; ++i) {
    state[2].f32()[i] = std::abs(state[2].f32()[i]);
  }
  state[3].fill(kPoison);
  return state;
}
}  // namespace

TEST_CASE("adamw equals the reference bit for bit") {
  Random random(51);
  for (DType dtype : kActivationTypes) {
    for (auto [rows, cols] : {std::pair{1, 1}, {3, 17}, {70, 40}, {1, 40001}, {40, 5000}, {3, 20001}}) {
      const std::vector<Storage> state = random_state(random, dtype, rows, cols);
      const Storage grad = random.normal(DType::f32, rows, cols, 3);
      compare(state, {0, 0, 0, 0}, [&](Backend& b, Stream& s, auto& o) {
        const UpdateBox boxes[] = {box_of(o, grad, 0, rows)};
        b.run(s, AdamW{.boxes = boxes, .step = kStep});
      });
    }
  }
}

TEST_CASE("adamw of a box cut in two equals adamw of the whole") {
  Random random(52);
  const int64_t rows = 37, cols = 29;
  const std::vector<Storage> state = random_state(random, DType::bf16, rows, cols);
  const Storage grad = random.normal(DType::f32, rows, cols);
  for (const Candidate& c : candidates()) {
    const auto s = c.backend->create_stream();
    std::vector<Storage> whole = state;
    const UpdateBox one[] = {box_of(whole, grad, 0, rows)};
    c.backend->run(*s, AdamW{.boxes = one, .step = kStep});
    for (int64_t cut = 1; cut < rows; cut += 5) {
      std::vector<Storage> halves = state;
      const UpdateBox two[] = {box_of(halves, grad, 0, cut), box_of(halves, grad, cut, rows - cut)};
      c.backend->run(*s, AdamW{.boxes = two, .step = kStep});
      for (size_t i = 0; i < 4; ++i) {
        CHECK(halves[i].content() == whole[i].content());
      }
    }
  }
}

TEST_CASE("sum_squares and sum agree with the reference, whatever the stride") {
  Random random(53);
  for (auto [rows, cols] : {std::pair{1, 1}, {5, 19}, {300, 301}, {2, 20000}}) {
    std::vector<double> first;
    for (int64_t pad : {0, 7}) {
      Random same(54);
      const Storage x = same.normal(DType::f32, rows, cols, pad), tail = same.normal(DType::f32, 3, 3);
      const Matrix boxes[] = {x, tail};
      const auto s = reference().create_stream();
      double expected[2], total = 0;
      reference().run(*s, SumSquares{.boxes = boxes, .out = expected});
      std::vector<double> by_candidate;
      for (const Candidate& c : candidates()) {
        double got[2] = {NAN, NAN};
        c.backend->run(*s, SumSquares{.boxes = boxes, .out = got});
        CHECK(got[0] == Approx(expected[0]).epsilon(tolerance::kDoubleSum));
        CHECK(got[1] == Approx(expected[1]).epsilon(tolerance::kDoubleSum));
        by_candidate.push_back(got[0]);
        c.backend->run(*s, Sum{.x = tail.f32(), .n = 9, .out = &total});
        double in_order = 0;
        for (int i = 0; i < 9; ++i) {
          in_order += tail.f32()[i];
        }
        CHECK(total == in_order);
      }
      for (size_t i = 1; i < by_candidate.size(); ++i) {
        if (candidates()[i].family == candidates()[i - 1].family) {
          CHECK(by_candidate[i] == by_candidate[i - 1]);
        }
      }
      if (first.empty()) {
        first = by_candidate;
      }
      CHECK(first == by_candidate);
    }
  }
}

namespace {

struct OneMoment {
  std::vector<double> w, m;
};

/// One step of each rule in double precision.
void lion_in_double(OneMoment& x, const Storage& grad, const LionStep& s, double decay) {
  for (size_t i = 0; i < x.w.size(); ++i) {
    const double g =
        double(grad.get(int64_t(i) / grad->cols, int64_t(i) % grad->cols)) * double(s.grad_scale);
    const double direction = double(s.beta1) * x.m[i] + (1 - double(s.beta1)) * g;
    x.w[i] -= double(s.lr) * decay * x.w[i];
    x.w[i] -= double(s.lr) * (direction > 0 ? 1 : -1);
    x.m[i] = double(s.beta2) * x.m[i] + (1 - double(s.beta2)) * g;
  }
}
void sgd_in_double(OneMoment& x, const Storage& grad, const SgdStep& s, double decay) {
  for (size_t i = 0; i < x.w.size(); ++i) {
    const double g =
        double(grad.get(int64_t(i) / grad->cols, int64_t(i) % grad->cols)) * double(s.grad_scale);
    x.m[i] = double(s.momentum) * x.m[i] + g;
    x.w[i] -= double(s.lr) * decay * x.w[i];
    x.w[i] -= double(s.lr) * x.m[i];
  }
}

const LionStep kLionStep{.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.97f, .grad_scale = 0.37f};
const SgdStep kSgdStep{.lr = 3e-3f, .momentum = 0.9f, .grad_scale = 0.37f};

/// The step with the box's own learning rate.
template <typename Step>
Step own_step(Step step, const UpdateBox& box) {
  step.lr *= box.lr_scale;
  return step;
}

UpdateBox one_moment_box(const std::vector<Storage>& state, const Storage& grad) {
  return {.master = state[0].f32(),
          .first_moment = state[1].f32(),
          .grad = grad.f32(),
          .grad_stride = grad->stride,
          .param = state[2],
          .weight_decay = 0.1f,
          .lr_scale = 0.7f};
}

}  // namespace

TEST_CASE("lion and sgd equal the reference bit for bit") {
  Random random(55);
  for (DType dtype : kActivationTypes) {
    for (auto [rows, cols] : {std::pair{1, 1}, {3, 17}, {70, 40}, {1, 40001}, {3, 20001}}) {
      std::vector<Storage> state = {random.normal(DType::f32, rows, cols),
                                    random.normal(DType::f32, rows, cols), Storage(dtype, rows, cols, 5)};
      state[2].fill(kPoison);
      Storage grad = random.normal(DType::f32, rows, cols, 3);
      state[1].set(0, 0, 0), grad.set(0, 0, 0);  // no direction
      compare(state, {0, 0, 0}, [&](Backend& b, Stream& s, auto& o) {
        const UpdateBox boxes[] = {one_moment_box(o, grad)};
        b.run(s, Lion{.boxes = boxes, .step = kLionStep});
      });
      compare(state, {0, 0, 0}, [&](Backend& b, Stream& s, auto& o) {
        const UpdateBox boxes[] = {one_moment_box(o, grad)};
        b.run(s, Sgd{.boxes = boxes, .step = kSgdStep});
      });
    }
  }
}

TEST_CASE("lion and sgd are their formulas over several steps") {
  Random random(56);
  const int64_t rows = 11, cols = 13;
  for (const bool lion : {true, false}) {
    std::vector<Storage> state = {random.normal(DType::f32, rows, cols),
                                  random.normal(DType::f32, rows, cols), Storage(DType::f32, rows, cols, 2)};
    OneMoment expected;
    for (int64_t i = 0; i < rows * cols; ++i)
      expected.w.push_back(state[0].f32()[i]), expected.m.push_back(state[1].f32()[i]);
    const auto s = reference().create_stream();
    for (int step = 0; step < 4; ++step) {
      const Storage grad = random.normal(DType::f32, rows, cols, 1);
      const UpdateBox boxes[] = {one_moment_box(state, grad)};
      if (lion) {
        reference().run(*s, Lion{.boxes = boxes, .step = kLionStep});
        lion_in_double(expected, grad, own_step(kLionStep, boxes[0]), double(boxes[0].weight_decay));
      } else {
        reference().run(*s, Sgd{.boxes = boxes, .step = kSgdStep});
        sgd_in_double(expected, grad, own_step(kSgdStep, boxes[0]), double(boxes[0].weight_decay));
      }
    }
    for (int64_t i = 0; i < rows * cols; ++i) {
      CHECK(std::abs(state[0].f32()[i] - expected.w[size_t(i)]) < tolerance::kOpF32);
      CHECK(std::abs(state[1].f32()[i] - expected.m[size_t(i)]) < tolerance::kOpF32);
      CHECK(state[2].get(i / cols, i % cols) == state[0].f32()[i]);
    }
  }
}

TEST_CASE("biases that balance experts go by their rate towards the mean") {
  const BalanceStep step{.rate = 0.1f, .mean = 7.5};
  for (auto [rows, cols] : {std::pair{1, 1}, {5, 1}, {3, 17}, {1, 600}}) {
    Random random(58);
    std::vector<Storage> state = {random.normal(DType::f32, rows, cols), Storage(DType::f32, rows, cols, 5)};
    Storage counts(DType::f32, rows, cols, 3);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) counts.set(r, c, float((r * cols + c) % 16));
    const auto run = [&](Backend& b, Stream& s, auto& o, double mean) {
      const UpdateBox boxes[] = {
          {.master = o[0].f32(), .grad = counts.f32(), .grad_stride = counts->stride, .param = o[1]}};
      b.run(s, Balance{.boxes = boxes, .step = {step.rate, mean}});
    };
    compare(state, {0, 0}, [&](Backend& b, Stream& s, auto& o) { run(b, s, o, step.mean); });
    std::vector<Storage> after = state;
    run(reference(), *reference().create_stream(), after, 7);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const float count = counts.get(r, c), before = state[0].get(r, c);
        CHECK(after[0].get(r, c) == (count < 7 ? before + 0.1f : count > 7 ? before - 0.1f : before));
        CHECK(after[1].get(r, c) == after[0].get(r, c));
      }
  }
}

TEST_CASE("scaled_add equals the reference bit for bit, and reads no output that it overwrites") {
  Random random(57);
  for (auto [rows, cols] : {std::pair{1, 1}, {3, 17}, {70, 40}, {2, 40001}})
    for (const float beta : {0.0f, 1.0f, -0.7f}) {
      const Storage x = random.normal(DType::f32, rows, cols, 3);
      std::vector<Storage> out = {random.normal(DType::f32, rows, cols, 1)};
      if (beta == 0) out[0].fill(NAN);
      compare(out, {0}, [&](Backend& b, Stream& s, auto& o) {
        b.run(s, ScaledAdd{.x = x, .out = o[0], .alpha = 1.3f, .beta = beta});
      });
      const auto s = reference().create_stream();
      std::vector<Storage> once = out;
      reference().run(*s, ScaledAdd{.x = x, .out = once[0], .alpha = 1.3f, .beta = beta});
      const double old = beta == 0 ? 0 : double(out[0].get(0, 0));
      CHECK(double(once[0].get(0, 0)) ==
            Approx(double(1.3f) * double(x.get(0, 0)) + double(beta) * old).margin(tolerance::kOpF32));
    }
}

}  // namespace trainctl::kernels::test
