// Goal: every backend computes each mask that the reference computes: windows, documents, caps, sinks, in all
// combinations, and the gradient of the sinks; the work of a mask is counted by its visible pairs.
// Method: against the reference, on ragged lengths, grouped heads and all head dimensions with kernels of their
// own; packed documents against each document alone; pairs against their definition.
#include "support.h"

namespace trainctl::kernels::test {
namespace {

/// A mask with its memory.
struct Mask {
  std::vector<int32_t> first_key;
  std::vector<float> sinks;
  int64_t window = 0;
  float cap = 0;

  AttentionMask view() const {
    return {.first_key = first_key.empty() ? nullptr : first_key.data(),
            .window = window,
            .cap = cap,
            .scalars = {sinks.empty() ? nullptr : sinks.data()}};
  }
};

struct Lengths {
  int64_t batch, seq_len, heads, kv_heads, head_dim;
};

AttentionShape shape_with(const Lengths& n, const Mask& mask) {
  return {.batch = n.batch,
          .seq_len = n.seq_len,
          .heads = n.heads,
          .kv_heads = n.kv_heads,
          .head_dim = n.head_dim,
          .scale = 1.0f / std::sqrt(float(n.head_dim)),
          .mask = mask.view()};
}

enum class Documents { none, single_tokens, ragged };

/// The first key of each row. Ragged: documents of 1, 2, 4, .. rows, from another length in each sequence; the last
/// one ends with the sequence.
std::vector<int32_t> first_keys(Documents documents, int64_t batch, int64_t seq_len) {
  std::vector<int32_t> first;
  if (documents == Documents::none) return first;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t begin = 0, length = documents == Documents::ragged ? 1 + 2 * b : 1;
    for (int64_t t = 0; t < seq_len; ++t) {
      if (t == begin + length) {
        begin = t;
        if (documents == Documents::ragged) length *= 2;
      }
      first.push_back(int32_t(begin));
    }
  }
  return first;
}

std::vector<float> sinks_near(float value, int64_t heads) {
  std::vector<float> sinks;
  for (int64_t h = 0; h < heads; ++h) sinks.push_back(h % 2 == 0 ? value : -value);
  return sinks;
}

/// Forward, backward and the gradient of the sinks by each candidate against the reference. `one_weight`: each row
/// has one key or sink that takes all, so that dq and dk are what remains of equal numbers. Their error is
/// measured against q and k.
void check_mask(const Lengths& n, const Mask& mask, DType dtype, uint32_t seed, bool one_weight = false) {
  const AttentionShape shape = shape_with(n, mask);
  INFO("B " << n.batch << " T " << n.seq_len << " H " << n.heads << " G " << n.kv_heads << " D " << n.head_dim
            << " " << name_of(dtype) << " window " << mask.window << " cap " << mask.cap << " documents "
            << !mask.first_key.empty() << " first sink " << (mask.sinks.empty() ? NAN : mask.sinks[0]));
  Random random(seed);
  const int64_t rows = n.batch * n.seq_len, q_cols = n.heads * n.head_dim, kv_cols = n.kv_heads * n.head_dim;
  const Storage q = random.normal(dtype, rows, q_cols, 8, 2.0f),
                k = random.normal(dtype, rows, kv_cols, 8, 2.0f);
  // Their means keep the gradient of a sink, a sum over rows, from being the rest of terms of both signs.
  const Storage v = random.normal(dtype, rows, kv_cols, 8, 1.0f, 0.3f),
                dout = random.normal(dtype, rows, q_cols, 8, 1.0f, 0.3f);
  Storage out(dtype, rows, q_cols, 8), lse(DType::f32, rows, n.heads, 0),
      dq = q, dk = k, dv = v, sinks(DType::f32, 1, n.heads, 0), dsinks = sinks;
  for (Storage* poisoned : {&out, &lse, &dq, &dk, &dv, &dsinks}) poisoned->fill(kPoison);
  if (mask.sinks.empty()) dsinks.fill(0);
  std::copy(mask.sinks.begin(), mask.sinks.end(), sinks.f32());
  const double t = tolerance::of_op(dtype);
  compare({out, lse, dq, dk, dv, dsinks}, {t, tolerance::kOpF32, t, t, t, t},
          [&](Backend& b, Stream& s, auto& o) {
            b.run(s,
                  AttentionForward{.shape = shape, .q = q, .k = k, .v = v, .out = o[0], .lse = o[1].f32()});
            b.run(s, AttentionBackward{.shape = shape,
                                       .q = q,
                                       .k = k,
                                       .v = v,
                                       .out = o[0],
                                       .lse = o[1].f32(),
                                       .dout = dout,
                                       .dq = o[2],
                                       .dk = o[3],
                                       .dv = o[4]});
            if (!mask.sinks.empty())
              b.run(s, HeadScalarBackward{.rows = {.out = o[0], .dout = dout},
                                          .lse = o[1].f32(),
                                          .values = sinks,
                                          .dvalues = o[5],
                                          .head_dim = n.head_dim});
            if (one_weight) {
              reference().run(s, Add{.src = q, .dst = o[2]});
              reference().run(s, Add{.src = k, .dst = o[3]});
            }
            // Of a query that sees no key: minus infinity, which has no relative error.
            for (int64_t m = 0; m < rows; ++m)
              for (int64_t h = 0; h < n.heads; ++h)
                if (o[1].get(m, h) == -INFINITY) o[1].set(m, h, -100);
          });
}

/// Every mask of the ones named, `each` taking one of `stride` combinations in turn.
void check_masks(const Lengths& n, DType dtype, size_t begin, size_t stride) {
  size_t i = 0;
  for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{3}, n.seq_len, n.seq_len + 9})
    for (const Documents documents : {Documents::none, Documents::single_tokens, Documents::ragged})
      for (const float cap : {0.0f, 30.0f})
        for (const float sink : {0.0f, 0.7f, 30.0f}) {
          if (i++ % stride != begin) continue;
          check_mask(n,
                     {.first_key = first_keys(documents, n.batch, n.seq_len),
                      .sinks = sink == 0 ? std::vector<float>{} : sinks_near(sink, n.heads),
                      .window = window,
                      .cap = cap},
                     dtype, 71, window == 1 || documents == Documents::single_tokens || sink == 30);
        }
}

}  // namespace

TEST_CASE("every combination of masks agrees with the reference") {
  for (const DType dtype : kActivationTypes) check_masks({2, 37, 4, 2, 16}, dtype, 0, 1);
}

TEST_CASE("masks agree with the reference for every head dimension with kernels of its own") {
  for (const DType dtype : kActivationTypes)
    for (const int64_t head_dim : {64, 128}) check_masks({2, 70, 2, 1, head_dim}, dtype, 1, 7);
}

TEST_CASE("masks agree with the reference over several blocks of queries and keys") {
  for (const DType dtype : kActivationTypes)
    for (const int64_t head_dim : {16, 64, 128})
      for (const int64_t window : {int64_t{0}, int64_t{65}, int64_t{150}})
        for (const Documents documents : {Documents::none, Documents::ragged}) {
          if (window == 0 && documents == Documents::none) continue;
          check_mask({1, 301, 1, 1, head_dim}, {.first_key = first_keys(documents, 1, 301), .window = window},
                     dtype, 72);
        }
}

TEST_CASE("queries that see no key agree with the reference") {
  for (const DType dtype : kActivationTypes)
    for (const int64_t head_dim : {16, 64}) {
      std::vector<int32_t> first;
      for (int32_t t = 0; t < 200; ++t) first.push_back(t < 90 ? 90 : 190);  // 0 to 89 and 90 to 189 see none
      check_mask({1, 200, 1, 1, head_dim}, {.first_key = first}, dtype, 73);
      check_mask({1, 200, 1, 1, head_dim}, {.first_key = first, .sinks = {0.5f}}, dtype, 74);
    }
}

TEST_CASE("packed documents agree with separate runs of each document") {
  // Blocks of keys begin at other rows, so that sums are rounded elsewhere: within tolerance.
  const std::vector<int64_t> documents = {64, 1, 63, 128, 5, 40};
  std::vector<int32_t> first;
  for (const int64_t length : documents) first.insert(first.end(), size_t(length), int32_t(first.size()));
  const int64_t rows = int64_t(first.size());
  for (const DType dtype : kActivationTypes) {
    const Lengths whole{1, rows, 2, 1, 64};
    Random random(75);
    const Storage q = random.normal(dtype, rows, 128), k = random.normal(dtype, rows, 64),
                  v = random.normal(dtype, rows, 64), dout = random.normal(dtype, rows, 128);
    for (const Candidate& candidate : candidates()) {
      INFO(candidate.name);
      const auto stream = candidate.backend->create_stream();
      const auto run = [&](const AttentionShape& shape, int64_t begin, Storage& out, Storage& lse,
                           Storage& dq, Storage& dk, Storage& dv) {
        const int64_t n = shape.seq_len;
        const auto of = [&](const Matrix& m) { return m.row_range(begin, n); };
        float* const sums = lse.f32() + begin * 2;
        candidate.backend->run(
            *stream, AttentionForward{
                         .shape = shape, .q = of(q), .k = of(k), .v = of(v), .out = of(out), .lse = sums});
        candidate.backend->run(*stream, AttentionBackward{.shape = shape,
                                                          .q = of(q),
                                                          .k = of(k),
                                                          .v = of(v),
                                                          .out = of(out),
                                                          .lse = sums,
                                                          .dout = of(dout),
                                                          .dq = of(dq),
                                                          .dk = of(dk),
                                                          .dv = of(dv)});
      };
      Storage lse(DType::f32, rows, 2, 0), lse_alone = lse;
      std::vector<Storage> packed = {q, q, k, v}, alone = {q, q, k, v};
      run(shape_with(whole, {.first_key = first}), 0, packed[0], lse, packed[1], packed[2], packed[3]);
      int64_t begin = 0;
      for (const int64_t length : documents) {
        run(shape_with({1, length, 2, 1, 64}, {}), begin, alone[0], lse_alone, alone[1], alone[2], alone[3]);
        begin += length;
      }
      CHECK(relative_error(lse, lse_alone) < tolerance::kOpF32);
      for (size_t i = 0; i < packed.size(); ++i) {
        INFO("result " << i << " of out, dq, dk, dv");
        CHECK(relative_error(packed[i], alone[i]) < tolerance::of_op(dtype));
      }
    }
  }
}

TEST_CASE("the gradient of sinks adds to what is there and agrees with the reference") {
  Random random(76);
  for (const DType dtype : kActivationTypes)
    for (const auto& [rows, heads, head_dim] :
         {std::tuple{1, 1, 16}, {70, 3, 10}, {257, 40, 64}, {1000, 2, 128}})
      for (const bool accumulate : {false, true}) {
        INFO("M " << rows << " H " << heads << " D " << head_dim << " " << name_of(dtype));
        const Storage out = random.normal(dtype, rows, heads * head_dim, 8),
                      dout = random.normal(dtype, rows, heads * head_dim, 8, 1.0f, 0.3f),
                      sinks = random.normal(DType::f32, 1, heads),
                      lse = random.normal(DType::f32, rows, heads);
        Storage dsinks = random.normal(DType::f32, 1, heads);
        if (!accumulate) dsinks.fill(kPoison);
        compare({dsinks}, {tolerance::kOpF32}, [&](Backend& b, Stream& s, auto& o) {
          b.run(s, HeadScalarBackward{.rows = {.out = out, .dout = dout},
                                      .lse = lse.f32(),
                                      .values = sinks,
                                      .dvalues = o[0],
                                      .head_dim = head_dim,
                                      .accumulate = accumulate});
        });
      }
  const Storage none(DType::f32, 0, 32, 0), sinks(DType::f32, 1, 2, 0), lse(DType::f32, 0, 2, 0);
  for (const bool accumulate : {false, true}) {
    Storage dsinks(DType::f32, 1, 2, 0);
    dsinks.fill(accumulate ? 3.0f : kPoison);
    compare({dsinks}, {0}, [&](Backend& b, Stream& s, auto& o) {
      b.run(s, HeadScalarBackward{.rows = {.out = none, .dout = none},
                                  .lse = lse.f32(),
                                  .values = sinks,
                                  .dvalues = o[0],
                                  .head_dim = 16,
                                  .accumulate = accumulate});
    });
  }
}

TEST_CASE("visible pairs are those of the mask, and determine the FLOPs of a window") {
  for (int64_t seq_len = 1; seq_len <= 20; ++seq_len)
    for (int64_t window = 0; window <= seq_len + 2; ++window) {
      int64_t pairs = 0;
      for (int64_t t = 0; t < seq_len; ++t)
        for (int64_t key = 0; key <= t; ++key) pairs += window == 0 || t - key < window;
      CHECK(visible_pairs(seq_len, window) == pairs);
      const AttentionForward op{.shape = shape_with({2, seq_len, 6, 3, 10}, {.window = window})};
      const AttentionForward causal{.shape = shape_with({2, seq_len, 6, 3, 10}, {})};
      const bool shorter = window > 0 && window < seq_len;
      CHECK((op.cost_shape() == causal.cost_shape()) == !shorter);
      CHECK(causal.flops() == 2.0 * 2 * 60 * double(seq_len * seq_len));
      CHECK(op.flops() == (shorter ? 4.0 * 2 * 60 * double(pairs) : causal.flops()));
      CHECK(AttentionBackward{.shape = op.shape}.flops() == 2 * op.flops());
      const std::vector<int32_t> first = first_keys(Documents::ragged, 2, seq_len);
      CHECK(AttentionForward{.shape = shape_with({2, seq_len, 6, 3, 10}, {.first_key = first})}.flops() ==
            causal.flops());
    }
}

}  // namespace trainctl::kernels::test
