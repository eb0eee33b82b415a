// Goal: blocked attention and its gradient agree with the plain formula; rope turns and turns back.
// Method: ragged lengths around the block size, grouped heads, all head dimensions' remainders, columns of one matrix.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

void check_attention_shape(const AttentionShape& shape, DType dtype, uint32_t seed) {
  INFO("B " << shape.batch << " T " << shape.seq_len << " H " << shape.heads << " G " << shape.kv_heads << " D "
            << shape.head_dim << " " << name_of(dtype));
  Random random(seed);
  const int64_t rows = shape.batch * shape.seq_len, q_cols = shape.heads * shape.head_dim,
                kv_cols = shape.kv_heads * shape.head_dim;
  // q, k and v are columns of one matrix, as a fused projection leaves them, and so are their gradients
  const Storage qkv = random.normal(dtype, rows, q_cols + 2 * kv_cols, 3), dout = random.normal(dtype, rows, q_cols, 1);
  const auto split = [&](const Matrix& m) {
    return std::array{m.columns(0, q_cols), m.columns(q_cols, kv_cols), m.columns(q_cols + kv_cols, kv_cols)};
  };
  Storage out(dtype, rows, q_cols, 2), lse(DType::f32, rows, shape.heads, 0), dqkv = qkv;
  for (Storage* poisoned : {&out, &lse, &dqkv}) {
    poisoned->fill(kPoison);
  }
  const double t = tolerance::of_op(dtype);
  compare({out, lse, dqkv}, {t, tolerance::kOpF32, t}, [&](Backend& b, Stream& s, auto& o) {
    const auto [q, k, v] = split(qkv);
    const auto [dq, dk, dv] = split(o[2]);
    b.run(s, AttentionForward{.shape = shape, .q = q, .k = k, .v = v, .out = o[0], .lse = o[1].f32()});
    b.run(s, AttentionBackward{.shape = shape, .q = q, .k = k, .v = v, .out = o[0], .lse = o[1].f32(),
                               .dout = dout, .dq = dq, .dk = dk, .dv = dv});
  });
}

AttentionShape shape_of(int64_t batch, int64_t seq_len, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {batch, seq_len, heads, kv_heads, head_dim, 1.0f / std::sqrt(float(head_dim))};
}

}  // namespace

TEST_CASE("attention agrees with the reference at every kind of length") {
  for (DType dtype : kActivationTypes) {
    for (int64_t seq_len : {1, 2, 15, 16, 17, 63, 64, 65, 100, 129}) {
      check_attention_shape(shape_of(2, seq_len, 2, 1, 16), dtype, 41);
    }
  }
}

TEST_CASE("attention agrees with the reference for every head dimension and grouping") {
  for (DType dtype : kActivationTypes) {
    for (int64_t head_dim : {8, 10, 24, 32, 40, 64, 80, 96, 128, 200, 256}) {
      check_attention_shape(shape_of(1, 70, 2, 2, head_dim), dtype, 42);
    }
    for (auto [heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {6, 2}, {8, 1}, {3, 3}}) {
      check_attention_shape(shape_of(2, 33, heads, kv_heads, 24), dtype, 43);
    }
  }
}

TEST_CASE("attention weights that differ by hundreds of units do not overflow") {
  Random random(44);
  const AttentionShape shape{1, 80, 1, 1, 16, 10.0f};
  const Storage q = random.normal(DType::f32, 80, 16, 0, 4.0f), k = random.normal(DType::f32, 80, 16, 0, 4.0f);
  const Storage v = random.normal(DType::f32, 80, 16);
  Storage out(DType::f32, 80, 16, 0), lse(DType::f32, 80, 1, 0);
  compare({out, lse}, {tolerance::kSharpAttention, tolerance::kOpF32}, [&](Backend& b, Stream& s, auto& o) {
    b.run(s, AttentionForward{.shape = shape, .q = q, .k = k, .v = v, .out = o[0], .lse = o[1].f32()});
  });
}

TEST_CASE("rope agrees with the reference and its inverse undoes it") {
  Random random(45);
  for (DType dtype : kActivationTypes) {
    for (auto [rows, heads, head_dim, seq_len] :
         {std::tuple{1, 1, 2, 1}, {40, 3, 8, 7}, {35, 2, 64, 35}, {20, 2, 100, 10}}) {
      const Storage x = random.normal(dtype, rows, heads * head_dim, 5);
      Storage angles(DType::f32, seq_len, head_dim, 0);
      for (int64_t t = 0; t < seq_len; ++t) {
        for (int64_t d = 0; d < head_dim / 2; ++d) {
          const double angle = double(t) * std::pow(10000.0, -2.0 * double(d) / double(head_dim));
          angles.set(t, d, float(std::cos(angle)));
          angles.set(t, head_dim / 2 + d, float(std::sin(angle)));
        }
      }
      compare({x, x}, std::vector<double>(2, tolerance::of_op(dtype)), [&](Backend& b, Stream& s, auto& o) {
        b.run(s, Rope{.x = o[0], .head_dim = head_dim, .seq_len = seq_len, .cos_sin = angles.f32()});
        b.run(s, Rope{.x = o[1], .head_dim = head_dim, .seq_len = seq_len, .cos_sin = angles.f32()});
        b.run(s, Rope{.x = o[1], .head_dim = head_dim, .seq_len = seq_len, .cos_sin = angles.f32(),
                      .inverse = true});
        CHECK(relative_error(o[1], x) < tolerance::of_op(dtype));
      });
    }
  }
}

TEST_CASE("the reference's attention gradient is the derivative of its forward pass") {
  Random random(46);
  Backend& b = reference();
  const auto s = b.create_stream();
  const AttentionShape shape = shape_of(1, 4, 2, 1, 4);
  std::vector<Storage> in = {random.normal(DType::f32, 4, 8), random.normal(DType::f32, 4, 4),
                             random.normal(DType::f32, 4, 4)};
  const Storage dout = random.normal(DType::f32, 4, 8);
  Storage out(DType::f32, 4, 8, 0), lse(DType::f32, 4, 2, 0);
  std::vector<Storage> grad = in;
  const auto loss = [&] {
    b.run(*s, AttentionForward{.shape = shape, .q = in[0], .k = in[1], .v = in[2], .out = out,
                               .lse = lse.f32()});
    double sum = 0;
    for (int64_t i = 0; i < 32; ++i) {
      sum += double(out.get(i / 8, i % 8)) * dout.get(i / 8, i % 8);
    }
    return sum;
  };
  loss();
  b.run(*s, AttentionBackward{.shape = shape, .q = in[0], .k = in[1], .v = in[2], .out = out,
                              .lse = lse.f32(), .dout = dout, .dq = grad[0], .dk = grad[1], .dv = grad[2]});
  for (size_t which = 0; which < 3; ++which) {
    for (int64_t i = 0; i < in[which]->count(); ++i) {
      const int64_t r = i / in[which]->cols, c = i % in[which]->cols;
      const float kept = in[which].get(r, c), h = 1e-2f;
      in[which].set(r, c, kept + h);
      const double up = loss();
      in[which].set(r, c, kept - h);
      const double down = loss();
      in[which].set(r, c, kept);
      CHECK((up - down) / (2 * h) == Approx(grad[which].get(r, c)).margin(tolerance::kFiniteDifference));
    }
  }
}

}  // namespace trainctl::kernels::test
