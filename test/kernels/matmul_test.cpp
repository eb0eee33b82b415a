// Goal: products and their gradients agree with the reference; neither threads, strides nor poison change a bit (on a GPU, no strides
// of one alignment class: where rows begin on 16 bytes the library takes other algorithms).
// Method: ragged shapes around the panel sizes against the reference; the same product with several strides bit for bit.
#include "support.h"

namespace trainctl::kernels::test {

namespace {
struct MnkShape {
  int64_t m, n, k;
};
const MnkShape kMatmulShapes[] = {{1, 1, 1},   {1, 5, 3},    {3, 17, 31},   {16, 1, 64},   {64, 64, 1},
                         {37, 50, 96}, {33, 401, 20}, {12, 1043, 24}, {530, 40, 12}, {20, 65, 801},
                         {60, 96, 300}, {3, 16801, 5}};
}  // namespace

TEST_CASE("linear_forward and its gradients agree with the reference") {
  Random random(21);
  for (DType dtype : kActivationTypes) {
    for (auto [m, n, k] : kMatmulShapes) {
      INFO("M " << m << " N " << n << " K " << k << " " << name_of(dtype));
      const Storage x = random.normal(dtype, m, k, 3), w = random.normal(dtype, n, k, 5);
      const Storage dy = random.normal(dtype, m, n, 1);
      const Storage bias = random.normal(DType::f32, 1, n);
      Storage rounded_bias(dtype, 1, n, 0);
      for (int64_t c = 0; c < n; ++c) rounded_bias.set(0, c, bias.get(0, c));
      Storage y(dtype, m, n, 2), y_plain(dtype, m, n, 0), y_f32(DType::f32, m, n, 7), dx(dtype, m, k, 4),
          dw(DType::f32, n, k, 3), dbias(DType::f32, 1, n, 0);
      for (Storage* poisoned : {&y, &y_plain, &y_f32, &dx, &dw, &dbias}) {
        poisoned->fill(kPoison);
      }
      const Storage dw_sum = random.normal(DType::f32, n, k, 9), dbias_sum = random.normal(DType::f32, 1, n);
      const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
      compare({y, y_plain, y_f32, dx, dw, dbias, dw_sum, dbias_sum}, {t, t, t, t, f, f, f, f},
              [&](Backend& b, Stream& s, auto& o) {
                const auto packed = b.make_packed(n, k, dtype);
                b.run(s, Pack{.w = w, .packed = packed.get()});
                b.run(s, LinearForward{.x = x, .w = packed.get(), .bias = bias, .y = o[0]});
                b.run(s, LinearForward{.x = x, .w = packed.get(), .y = o[1]});
                b.run(s, LinearForward{.x = x, .w = packed.get(),
                    .bias = b.bias_dtype(dtype) == dtype ? Matrix(rounded_bias) : Matrix(bias), .y = o[2]});
                b.run(s, LinearBackwardInput{.dy = dy, .w = packed.get(), .dx = o[3]});
                b.run(s, LinearBackwardWeight{.dy = dy, .x = x, .dw = o[4], .dbias = o[5]});
                b.run(s, LinearBackwardWeight{.dy = dy, .x = x, .dw = o[6], .dbias = o[7],
                                              .accumulate = true});
              });
    }
  }
}

TEST_CASE("a row stride never changes a product's bits") {
  Random random(22);
  for (DType dtype : kActivationTypes) {
    for (auto [m, n, k] : {MnkShape{64, 96, 128}, {7, 300, 50}, {130, 400, 769}, {64, 64, 5}, {40, 2689, 8},
                           MnkShape{40, 70, 1024}, {3, 16801, 5}}) {
      std::vector<std::vector<char>> first_of_class[2];
      for (int64_t pad : {0, 1, 16, 32, 100, 1024}) {
        INFO("M " << m << " N " << n << " K " << k << " pad " << pad << " " << name_of(dtype));
        Random same(23);
        const Storage x = same.normal(dtype, m, k, pad), w = same.normal(dtype, n, k, pad);
        const Storage dy = same.normal(dtype, m, n, pad);
        Storage y(dtype, m, n, pad), dx(dtype, m, k, pad), dw = same.normal(DType::f32, n, k, pad);
        const Candidate& candidate = candidates().front();
        Backend& b = *candidate.backend;
        const auto s = b.create_stream();
        const auto packed = b.make_packed(n, k, dtype);
        b.run(*s, Pack{.w = w, .packed = packed.get()});
        b.run(*s, LinearForward{.x = x, .w = packed.get(), .y = y});
        b.run(*s, LinearBackwardInput{.dy = dy, .w = packed.get(), .dx = dx});
        b.run(*s, LinearBackwardWeight{.dy = dy, .x = x, .dw = dw, .accumulate = true});
        const std::vector<std::vector<char>> bits = {y.content(), dx.content(), dw.content()};
        const int64_t step = 16 / int64_t(size_of(dtype));
        const bool aligned = (k + pad) % step == 0 && (n + pad) % step == 0;
        std::vector<std::vector<char>>& first = first_of_class[candidate.products_by_alignment && aligned];
        if (first.empty()) {
          first = bits;
        }
        CHECK(bits == first);
      }
    }
  }
}

TEST_CASE("products with a GELU agree with the reference, fused or not") {
  Random random(26);
  for (DType dtype : kActivationTypes) {
    // rows on 16 bytes and others, with a bias and without
    for (auto [m, n, k, pad] : {std::tuple{16, 64, 32, 0}, {37, 48, 96, 8}, {33, 50, 96, 0}, {5, 40, 24, 3}, {1, 8, 8, 0}}) {
      for (const bool has_bias : {false, true}) {
        INFO("M " << m << " N " << n << " K " << k << " pad " << pad << " " << name_of(dtype));
        const Storage x = random.normal(dtype, m, k, pad), w = random.normal(dtype, n, k, pad, 0.3f);
        const Storage down = random.normal(dtype, k, n, pad, 0.3f), dy = random.normal(dtype, m, k, pad);
        const Storage bias_values = random.normal(DType::f32, 1, n);
        const Matrix bias = has_bias ? Matrix(bias_values) : Matrix{};
        Storage pre(dtype, m, n, pad), y(dtype, m, n, pad), dx(dtype, m, n, pad);
        for (Storage* poisoned : {&pre, &y, &dx}) {
          poisoned->fill(kPoison);
        }
        const double t = tolerance::of_op(dtype);
        compare({pre, y, dx}, {t, t, t}, [&](Backend& b, Stream& s, auto& o) {
          const auto up = b.make_packed(n, k, dtype);
          const auto packed = b.make_packed(k, n, dtype);
          b.run(s, Pack{.w = w, .packed = up.get()});
          b.run(s, Pack{.w = down, .packed = packed.get()});
          b.run(s, LinearGeluForward{.x = x, .w = up.get(), .bias = bias, .pre = o[0], .y = o[1]});
          b.run(s, LinearGeluBackwardInput{.dy = dy, .w = packed.get(), .pre = o[0], .dx = o[2]});
        });
      }
    }
  }
}

TEST_CASE("no rows at all: outputs of [0, N], and a weight gradient of zeros") {
  for (DType dtype : kActivationTypes) {
    const Storage x(dtype, 0, 20, 0), dy(dtype, 0, 30, 0);
    Storage dw(DType::f32, 30, 20, 3), dbias(DType::f32, 1, 30, 0);
    dw.fill(kPoison);
    dbias.fill(kPoison);
    Random random(25);
    const Storage kept = random.normal(DType::f32, 30, 20, 1);
    const double none = tolerance::kNoRows;
    compare({dw, dbias, kept}, {none, none, 0}, [&](Backend& b, Stream& s, auto& o) {
      b.run(s, LinearBackwardWeight{.dy = dy, .x = x, .dw = o[0], .dbias = o[1]});
      b.run(s, LinearBackwardWeight{.dy = dy, .x = x, .dw = o[2], .accumulate = true});
    });
  }
}

TEST_CASE("a NaN or infinity in an operand reaches the product") {
  Random random(24);
  for (DType dtype : kActivationTypes) {
    Storage x = random.normal(dtype, 40, 50);
    const Storage w = random.normal(dtype, 60, 50);
    x.set(7, 3, NAN);
    x.set(9, 3, INFINITY);
    for (const Candidate& c : candidates()) {
      const auto s = c.backend->create_stream();
      const auto packed = c.backend->make_packed(60, 50, dtype);
      c.backend->run(*s, Pack{.w = w, .packed = packed.get()});
      Storage y(dtype, 40, 60, 0);
      c.backend->run(*s, LinearForward{.x = x, .w = packed.get(), .y = y});
      CHECK(std::isnan(y.get(7, 59)));
      CHECK(!std::isfinite(y.get(9, 0)));
      CHECK(std::isfinite(y.get(8, 0)));
    }
  }
}

TEST_CASE("the measured speed of a product is a positive number") {
  CHECK(measure_matmul_flops_per_s(*candidates().front().backend, DType::f32) > 0);
}

}  // namespace trainctl::kernels::test
