// Goal: AdamW is the same IEEE operations for every element, wherever a shard begins; norms are summed by shape alone.
// Method: bit equality with the reference, and of a box cut in two with the whole box.
#include "support.h"

namespace trainctl::kernels::test {

namespace {
const AdamWStep kStep{.lr = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 0.37f,
                      .bias_correction1 = 0.271f, .bias_correction2 = 0.142625f};

AdamWBox box_of(const std::vector<Storage>& state, const Storage& grad, int64_t first, int64_t rows) {
  const Matrix param = state[3]->row_range(first, rows);
  const int64_t at = first * state[3]->cols;
  return {state[0].f32() + at, state[1].f32() + at, state[2].f32() + at, grad.f32() + first * grad->stride,
          grad->stride, param, 0.1f};
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
        const AdamWBox boxes[] = {box_of(o, grad, 0, rows)};
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
    const AdamWBox one[] = {box_of(whole, grad, 0, rows)};
    c.backend->run(*s, AdamW{.boxes = one, .step = kStep});
    for (int64_t cut = 1; cut < rows; cut += 5) {
      std::vector<Storage> halves = state;
      const AdamWBox two[] = {box_of(halves, grad, 0, cut), box_of(halves, grad, cut, rows - cut)};
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

}  // namespace trainctl::kernels::test
