// Goal: norms and their gradients agree with the reference; recomputation repeats the forward pass bit for bit.
// Method: ragged shapes, f32 and bf16, with and without residual, bias and accumulation; a numerical gradient of the
// reference.
#include "support.h"

namespace trainctl::kernels::test {

namespace {
struct NormShape {
  int64_t rows, cols;
};
const NormShape kNormShapes[] = {{1, 5}, {3, 7}, {17, 16}, {5, 100}, {37, 768}, {130, 33}};
}  // namespace

TEST_CASE("norm_forward, norm_apply and norm_backward agree with the reference") {
  Random random(11);
  for (DType dtype : kActivationTypes) {
    for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
      for (NormShape shape : kNormShapes) {
        const auto [rows, cols] = shape;
        INFO("[" << rows << ", " << cols << "] " << name_of(dtype) << " norm " << int(kind));
        const bool layernorm = kind == NormKind::layernorm;
        const Storage x = random.normal(dtype, rows, cols, 3, 2.0f, 0.5f), delta = random.normal(dtype, rows, cols, 1);
        const Storage weight = random.normal(DType::f32, 1, cols, 0, 0.2f, 1.0f);
        const Storage bias_values = random.normal(DType::f32, 1, cols);
        const Matrix bias = layernorm ? Matrix(bias_values) : Matrix{};
        const Storage dy = random.normal(dtype, rows, cols, 2), residual = random.normal(dtype, rows, cols, 5);
        const Storage dweight = random.normal(DType::f32, 1, cols), dbias = random.normal(DType::f32, 1, cols);
        Storage dweight_alone(DType::f32, 1, cols, 0), dbias_alone = dbias;
        dweight_alone.fill(kPoison);
        if (layernorm) dbias_alone.fill(kPoison);
        Storage sum(dtype, rows, cols, 4), y(dtype, rows, cols, 0), stats(DType::f32, rows, 2, 0),
            y_alone(dtype, rows, cols, 2), stats_alone(DType::f32, rows, 2, 0), dx(dtype, rows, cols, 1),
            dx_alone(dtype, rows, cols, 0);
        for (Storage* poisoned : {&sum, &y, &stats, &y_alone, &stats_alone, &dx, &dx_alone}) {
          poisoned->fill(kPoison);
        }
        const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
        compare({sum, y, stats, y_alone, stats_alone, dx, dx_alone, dweight, dbias, dweight_alone, dbias_alone},
                {t, t, f, t, f, t, t, t, t, t, t}, [&](Backend& b, Stream& s, auto& o) {
                  b.run(s, NormForward{.kind = kind, .x = x, .delta = delta, .weight = weight, .bias = bias,
                                       .eps = 1e-5f, .sum = o[0], .y = o[1], .stats = o[2].f32()});
                  b.run(s, NormForward{.kind = kind, .x = x, .weight = weight, .bias = bias, .eps = 1e-5f,
                                       .y = o[3], .stats = o[4].f32()});
                  const Matrix db = layernorm ? Matrix(o[8]) : Matrix{};
                  b.run(s, NormBackward{.kind = kind, .dy = dy, .x = x, .weight = weight, .stats = o[4].f32(),
                                        .dresidual = residual, .dx = o[5], .dweight = o[7], .dbias = db,
                                        .accumulate = true});
                  b.run(s, NormBackward{.kind = kind, .dy = dy, .x = x, .weight = weight, .stats = o[4].f32(),
                                        .dx = o[6], .dweight = o[7], .accumulate = true});
                  b.run(s, NormBackward{.kind = kind, .dy = dy, .x = x, .weight = weight, .stats = o[4].f32(),
                                        .dx = o[6], .dweight = o[9],
                                        .dbias = layernorm ? Matrix(o[10]) : Matrix{}});
                  Storage again = o[1];
                  again.fill(kPoison);
                  b.run(s, NormApply{.kind = kind, .x = o[0], .stats = o[2].f32(), .weight = weight,
                                     .bias = bias, .y = again});
                  CHECK(again.content() == o[1].content());
                });
      }
    }
  }
}

TEST_CASE("norm_forward and norm_backward work in place") {
  Random random(12);
  const Storage x = random.normal(DType::f32, 9, 50), delta = random.normal(DType::f32, 9, 50);
  const Storage weight = random.normal(DType::f32, 1, 50), residual = random.normal(DType::f32, 9, 50);
  Storage y(DType::f32, 9, 50, 0), stats(DType::f32, 9, 2, 0);
  const Storage dweight = random.normal(DType::f32, 1, 50);
  const std::vector<double> all(5, tolerance::kOpF32);
  compare({x, y, stats, residual, dweight}, all, [&](Backend& b, Stream& s, auto& o) {
    b.run(s, NormForward{.kind = NormKind::rmsnorm, .x = o[0], .delta = delta, .weight = weight, .eps = 1e-6f,
                         .sum = o[0], .y = o[1], .stats = o[2].f32()});
    b.run(s, NormBackward{.kind = NormKind::rmsnorm, .dy = delta, .x = o[0], .weight = weight,
                          .stats = o[2].f32(), .dresidual = o[3], .dx = o[3], .dweight = o[4],
                          .accumulate = true});
  });
}

TEST_CASE("norms add an offset to their weights, and a layernorm may lack its bias") {
  Random random(14);
  for (DType dtype : kActivationTypes) {
    for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
      for (auto [rows, cols] : {std::pair{3, 7}, {37, 200}}) {
        const Storage x = random.normal(dtype, rows, cols, 3, 2.0f, 0.5f),
                      dy = random.normal(dtype, rows, cols, 2);
        const Storage weight = random.normal(DType::f32, 1, cols, 0, 0.2f);
        Storage one_more = weight, y(dtype, rows, cols, 1), stats(DType::f32, rows, 2, 0),
                dweight(DType::f32, 1, cols, 0);
        for (int c = 0; c < cols; ++c) one_more.set(0, c, weight.get(0, c) + 1.0f);
        for (Storage* poisoned : {&y, &stats, &dweight}) poisoned->fill(kPoison);
        const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
        compare({y, y, stats, y, dweight}, {t, t, f, t, f}, [&](Backend& b, Stream& s, auto& o) {
          const auto run = [&](const Storage& w, float offset, Storage& y, Storage& again, Storage& dx,
                               Storage& dw) {
            b.run(s, NormForward{.kind = kind,
                                 .x = x,
                                 .weight = w,
                                 .eps = 1e-5f,
                                 .y = y,
                                 .stats = o[2].f32(),
                                 .weight_offset = offset});
            b.run(s, NormApply{.kind = kind,
                               .x = x,
                               .stats = o[2].f32(),
                               .weight = w,
                               .y = again,
                               .weight_offset = offset});
            b.run(s, NormBackward{.kind = kind,
                                  .dy = dy,
                                  .x = x,
                                  .weight = w,
                                  .stats = o[2].f32(),
                                  .dx = dx,
                                  .dweight = dw,
                                  .weight_offset = offset});
          };
          run(weight, 1.0f, o[0], o[1], o[3], o[4]);
          CHECK(o[0].content() == o[1].content());
          std::vector<Storage> added = o;  // the weights that the offset makes, to one rounding of f32
          run(one_more, 0.0f, added[0], added[1], added[3], added[4]);
          if (&b == &reference()) return;  // it adds the offset in double
          for (size_t i : {0, 3, 4}) CHECK(o[i].content() == added[i].content());
        });
      }
    }
  }
}

TEST_CASE("the reference's norm gradient is the derivative of its forward pass") {
  Random random(13);
  Backend& b = reference();
  const auto stream = b.create_stream();
  for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
    for (const float offset : {0.0f, 1.0f}) {
      Storage x = random.normal(DType::f32, 1, 6), weight = random.normal(DType::f32, 1, 6);
      const Storage dy = random.normal(DType::f32, 1, 6);
      Storage y(DType::f32, 1, 6, 0), stats(DType::f32, 1, 2, 0), dx(DType::f32, 1, 6, 0),
          dweight(DType::f32, 1, 6, 0);
      const auto loss = [&] {
        b.run(*stream, NormForward{.kind = kind,
                                   .x = x,
                                   .weight = weight,
                                   .eps = 1e-5f,
                                   .y = y,
                                   .stats = stats.f32(),
                                   .weight_offset = offset});
        return dot(y, dy);
      };
      loss();
      b.run(*stream, NormBackward{.kind = kind,
                                  .dy = dy,
                                  .x = x,
                                  .weight = weight,
                                  .stats = stats.f32(),
                                  .dx = dx,
                                  .dweight = dweight,
                                  .weight_offset = offset});
      check_derivative(loss, x, dx);
      check_derivative(loss, weight, dweight);
    }
  }
}

}  // namespace trainctl::kernels::test
