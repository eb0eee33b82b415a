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

TEST_CASE("the reference's norm gradient is the derivative of its forward pass") {
  Random random(13);
  Backend& b = reference();
  const auto stream = b.create_stream();
  for (NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
    Storage x = random.normal(DType::f32, 1, 6);
    const Storage weight = random.normal(DType::f32, 1, 6), dy = random.normal(DType::f32, 1, 6);
    Storage y(DType::f32, 1, 6, 0), stats(DType::f32, 1, 2, 0), dx(DType::f32, 1, 6, 0), dweight(DType::f32, 1, 6, 0);
    dweight.fill(0);
    const auto loss = [&] {
      b.run(*stream, NormForward{.kind = kind, .x = x, .weight = weight, .eps = 1e-5f, .y = y,
                                 .stats = stats.f32()});
      double sum = 0;
      for (int c = 0; c < 6; ++c) {
        sum += double(y.get(0, c)) * dy.get(0, c);
      }
      return sum;
    };
    loss();
    b.run(*stream, NormBackward{.kind = kind, .dy = dy, .x = x, .weight = weight, .stats = stats.f32(),
                                .dx = dx, .dweight = dweight, .accumulate = true});
    for (int c = 0; c < 6; ++c) {
      const float kept = x.get(0, c), h = 1e-2f;
      x.set(0, c, kept + h);
      const double up = loss();
      x.set(0, c, kept - h);
      const double down = loss();
      x.set(0, c, kept);
      CHECK((up - down) / (2 * h) == Approx(dx.get(0, c)).margin(tolerance::kFiniteDifference));
    }
  }
}

}  // namespace trainctl::kernels::test
