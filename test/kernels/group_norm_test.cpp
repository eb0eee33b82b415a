// Goal: RMSNorm of groups of columns agrees with the reference, which is the norm of each group and its derivative.
// Method: ragged groups, f32 and bf16, views of wider matrices and in place; NormForward on one group; a norm over
// more columns than a rank has against the whole; numerical derivatives of the reference.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

struct GroupShape {
  int64_t rows, groups, group;
};
const GroupShape kGroupShapes[] = {{1, 1, 1}, {3, 5, 7}, {17, 3, 16}, {33, 4, 64}, {130, 2, 24}, {5, 1, 700}};

constexpr float kEps = 1e-5f, kOffset = 1.0f;

/// Runs all four ops: o = {y, dx, sums, dots, dweight}.
template <typename Outputs>
void run_all(Backend& b, Stream& s, const Storage& x, const Storage& dy, const Storage& weight, int64_t count,
             bool accumulate, Outputs& o) {
  const int64_t group = weight->cols;
  b.run(s, GroupNormSums{.x = x, .group = group, .count = count, .sums = o[2].f32()});
  b.run(s, GroupNormApply{.x = x,
                          .group = group,
                          .count = count,
                          .sums = o[2].f32(),
                          .weight = weight,
                          .weight_offset = kOffset,
                          .eps = kEps,
                          .y = o[0]});
  b.run(s, GroupNormDots{.dy = dy,
                         .x = x,
                         .group = group,
                         .count = count,
                         .weight = weight,
                         .weight_offset = kOffset,
                         .dots = o[3].f32()});
  b.run(s, GroupNormBackward{.dy = dy,
                             .x = x,
                             .group = group,
                             .count = count,
                             .sums = o[2].f32(),
                             .dots = o[3].f32(),
                             .weight = weight,
                             .weight_offset = kOffset,
                             .eps = kEps,
                             .dx = o[1],
                             .dweight = o[4],
                             .accumulate = accumulate});
}

std::vector<Storage> poisoned_outputs(DType dtype, const GroupShape& s) {
  std::vector<Storage> o = {Storage(dtype, s.rows, s.groups * s.group, 2),
                            Storage(dtype, s.rows, s.groups * s.group, 3),
                            Storage(DType::f32, s.rows, s.groups, 0),
                            Storage(DType::f32, s.rows, s.groups, 0), Storage(DType::f32, 1, s.group, 0)};
  for (Storage& m : o) m.fill(kPoison);
  return o;
}

}  // namespace

TEST_CASE("norms of groups agree with the reference") {
  Random random(61);
  for (DType dtype : kActivationTypes) {
    for (const GroupShape& shape : kGroupShapes) {
      for (const bool accumulate : {false, true}) {
        for (const int64_t count : {shape.group, 3 * shape.group}) {
          INFO(shape.rows << " rows of " << shape.groups << " groups of " << shape.group << " "
                          << name_of(dtype) << ", norms over " << count);
          const int64_t cols = shape.groups * shape.group;
          const Storage x = random.normal(dtype, shape.rows, cols, 3, 2.0f, 0.5f);
          const Storage dy = random.normal(dtype, shape.rows, cols, 1);
          const Storage weight = random.normal(DType::f32, 1, shape.group, 0, 0.2f);
          std::vector<Storage> outputs = poisoned_outputs(dtype, shape);
          if (accumulate) outputs[4] = random.normal(DType::f32, 1, shape.group);
          const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
          // dx of a group of one value is zero but for eps: nothing but rounding
          const double of_dx = shape.group == 1 ? tolerance::kUnchecked : t;
          compare(outputs, {t, of_dx, f, f, f}, [&](Backend& b, Stream& s, auto& o) {
            run_all(b, s, x, dy, weight, count, accumulate, o);
          });
        }
      }
    }
  }
}

TEST_CASE("norms of groups work in place, on columns of wider matrices") {
  Random random(62);
  for (DType dtype : kActivationTypes) {
    const int64_t rows = 19, group = 24, cols = 3 * group;
    const Storage wide = random.normal(dtype, rows, cols + 10), dwide = random.normal(dtype, rows, cols + 10);
    const Storage weight = random.normal(DType::f32, 1, group), dweight = random.normal(DType::f32, 1, group);
    const Storage sums(DType::f32, rows, 3, 0), dots = sums;
    const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
    compare({wide, dwide, dweight, sums, dots}, {t, t, f, f, f}, [&](Backend& b, Stream& s, auto& o) {
      const Matrix x = o[0]->columns(5, cols), dy = o[1]->columns(3, cols);
      b.run(s, GroupNormSums{.x = x, .group = group, .count = group, .sums = o[3].f32()});
      b.run(s, GroupNormDots{
                   .dy = dy, .x = x, .group = group, .count = group, .weight = weight, .dots = o[4].f32()});
      b.run(s, GroupNormBackward{.dy = dy,
                                 .x = x,
                                 .group = group,
                                 .count = group,
                                 .sums = o[3].f32(),
                                 .dots = o[4].f32(),
                                 .weight = weight,
                                 .eps = kEps,
                                 .dx = dy,
                                 .dweight = o[2],
                                 .accumulate = true});
      b.run(s, GroupNormApply{.x = x,
                              .group = group,
                              .count = group,
                              .sums = o[3].f32(),
                              .weight = weight,
                              .eps = kEps,
                              .y = x});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < 3; ++c) {
          CHECK(o[0].get(r, c) == wide.get(r, c));
          CHECK(o[1].get(r, c) == dwide.get(r, c));
          CHECK(o[0].get(r, cols + 5 + c) == wide.get(r, cols + 5 + c));
          CHECK(o[1].get(r, cols + 3 + c) == dwide.get(r, cols + 3 + c));
        }
      }
    });
  }
}

TEST_CASE("a norm of one group is the norm of the row") {
  Random random(63);
  const int64_t rows = 9, cols = 40;
  const Storage x = random.normal(DType::f32, rows, cols), weight = random.normal(DType::f32, 1, cols);
  const Storage dy = random.normal(DType::f32, rows, cols);
  std::vector<Backend*> backends = {&reference()};
  for (const Candidate& c : candidates()) backends.push_back(c.backend.get());
  for (Backend* b : backends) {
    const auto s = b->create_stream();
    std::vector<Storage> o = poisoned_outputs(DType::f32, {rows, 1, cols});
    run_all(*b, *s, x, dy, weight, cols, false, o);
    Storage y(DType::f32, rows, cols, 0), dx = y, stats(DType::f32, rows, 2, 0),
                                          dweight(DType::f32, 1, cols, 0);
    b->run(
        *s,
        NormForward{
            .x = x, .weight = weight, .eps = kEps, .y = y, .stats = stats.f32(), .weight_offset = kOffset});
    b->run(*s, NormBackward{.dy = dy,
                            .x = x,
                            .weight = weight,
                            .stats = stats.f32(),
                            .dx = dx,
                            .dweight = dweight,
                            .weight_offset = kOffset});
    CHECK(relative_error(o[0], y) < tolerance::kOpF32);
    CHECK(relative_error(o[1], dx) < tolerance::kOpF32);
    CHECK(relative_error(o[4], dweight) < tolerance::kOpF32);
  }
}

TEST_CASE("ranks that add their sums make the norm of the whole row") {
  Random random(64);
  const int64_t rows = 6, part = 20, cols = 3 * part;
  const Storage x = random.normal(DType::f32, rows, cols), dy = random.normal(DType::f32, rows, cols);
  const Storage weight = random.normal(DType::f32, 1, cols);
  for (const Candidate& c : candidates()) {
    Backend& b = *c.backend;
    const auto s = b.create_stream();
    std::vector<Storage> whole = poisoned_outputs(DType::f32, {rows, 1, cols}), o = whole;
    run_all(b, *s, x, dy, weight, cols, false, whole);
    Storage sums(DType::f32, 1, rows, 0), dots = sums, own = sums;
    sums.fill(0), dots.fill(0);
    for (int64_t rank = 0; rank < 3; ++rank) {
      const auto of_rank = [&](const Matrix& m) { return m.columns(rank * part, part); };
      b.run(*s, GroupNormSums{.x = of_rank(x), .group = part, .count = cols, .sums = own.f32()});
      b.run(*s, Add{.src = own, .dst = sums});
      b.run(*s, GroupNormDots{.dy = of_rank(dy),
                              .x = of_rank(x),
                              .group = part,
                              .count = cols,
                              .weight = of_rank(weight),
                              .weight_offset = kOffset,
                              .dots = own.f32()});
      b.run(*s, Add{.src = own, .dst = dots});
    }
    for (int64_t rank = 0; rank < 3; ++rank) {
      const auto of_rank = [&](const Matrix& m) { return m.columns(rank * part, part); };
      b.run(*s, GroupNormApply{.x = of_rank(x),
                               .group = part,
                               .count = cols,
                               .sums = sums.f32(),
                               .weight = of_rank(weight),
                               .weight_offset = kOffset,
                               .eps = kEps,
                               .y = of_rank(o[0])});
      b.run(*s, GroupNormBackward{.dy = of_rank(dy),
                                  .x = of_rank(x),
                                  .group = part,
                                  .count = cols,
                                  .sums = sums.f32(),
                                  .dots = dots.f32(),
                                  .weight = of_rank(weight),
                                  .weight_offset = kOffset,
                                  .eps = kEps,
                                  .dx = of_rank(o[1]),
                                  .dweight = of_rank(o[4])});
    }
    for (size_t i : {0, 1, 4}) CHECK(relative_error(o[i], whole[i]) < tolerance::kOpF32);
  }
}

TEST_CASE("without rows the gradient of the weight is zero, or what it was") {
  for (const Candidate& c : candidates()) {
    const auto s = c.backend->create_stream();
    const Storage x(DType::f32, 1, 12, 0), weight(DType::f32, 1, 4, 0);
    Storage dweight(DType::f32, 1, 4, 0);
    dweight.fill(3.0f);
    const Matrix none = x->row_range(0, 0);
    GroupNormBackward op{.dy = none,
                         .x = none,
                         .group = 4,
                         .count = 4,
                         .sums = x.f32(),
                         .dots = x.f32(),
                         .weight = weight,
                         .eps = kEps,
                         .dx = none,
                         .dweight = dweight,
                         .accumulate = true};
    c.backend->run(*s, op);
    CHECK(dweight.get(0, 3) == 3.0f);
    op.accumulate = false;
    c.backend->run(*s, op);
    CHECK(dweight.get(0, 3) == 0.0f);
  }
}

TEST_CASE("the reference's gradient of a norm of groups is the derivative of its forward pass") {
  Random random(65);
  Backend& b = reference();
  const auto stream = b.create_stream();
  const GroupShape shape{2, 3, 4};
  Storage x = random.normal(DType::f32, 2, 12), weight = random.normal(DType::f32, 1, 4);
  const Storage dy = random.normal(DType::f32, 2, 12);
  std::vector<Storage> o = poisoned_outputs(DType::f32, shape);
  run_all(b, *stream, x, dy, weight, 4, false, o);
  const std::vector<Storage> analytic = o;
  const auto loss = [&] {
    run_all(b, *stream, x, dy, weight, 4, false, o);
    return dot(o[0], dy);
  };
  check_derivative(loss, x, analytic[1]);
  check_derivative(loss, weight, analytic[4]);
}

}  // namespace trainctl::kernels::test
