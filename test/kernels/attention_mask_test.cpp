// Goal: the mask of attention means what it says. Method: the reference alone, and the CPU against it where
// it computes a mask that other devices do not. Documents packed into one sequence against each document
// alone, queries of the end of a sequence against the whole sequence, a window against the formula written
// down again, caps and sinks against numerical derivatives; a query that sees nothing.
#include "support.h"

namespace trainctl::kernels::test {
namespace {

/// One head of 4 channels.
constexpr int64_t kChannels = 4;

struct Operands {
  Storage q, k, v, dout;
  static Operands random(int64_t queries, int64_t keys, uint32_t seed) {
    Random random(seed);
    return {random.normal(DType::f32, queries, kChannels), random.normal(DType::f32, keys, kChannels),
            random.normal(DType::f32, keys, kChannels), random.normal(DType::f32, queries, kChannels)};
  }
};

struct Results {
  Storage out, lse, dq, dk, dv;
};

Results attend(const AttentionShape& shape, const Operands& x) {
  const auto backend = make_reference_backend();
  const auto stream = backend->create_stream();
  const Matrix q = x.q, k = x.k;
  Results r{Storage(DType::f32, q.rows, kChannels, 0), Storage(DType::f32, q.rows, 1, 0),
            Storage(DType::f32, q.rows, kChannels, 0), Storage(DType::f32, k.rows, kChannels, 0),
            Storage(DType::f32, k.rows, kChannels, 0)};
  backend->run(*stream, AttentionForward{.shape = shape, .q = x.q, .k = x.k, .v = x.v, .out = r.out, .lse = r.lse.f32()});
  backend->run(*stream, AttentionBackward{.shape = shape, .q = x.q, .k = x.k, .v = x.v, .out = r.out, .lse = r.lse.f32(), .dout = x.dout, .dq = r.dq, .dk = r.dk, .dv = r.dv});
  return r;
}

AttentionShape one_head(int64_t seq_len, AttentionMask mask = {}) {
  return {.batch = 1,
          .seq_len = seq_len,
          .heads = 1,
          .kv_heads = 1,
          .head_dim = kChannels,
          .scale = 0.5f,
          .mask = mask};
}

Storage rows_of(const Storage& from, int64_t begin, int64_t n) {
  Storage rows(DType::f32, n, kChannels, 0);
  const Matrix m = from;
  std::copy_n(m.as<float>() + begin * kChannels, n * kChannels, rows.f32());
  return rows;
}

void require_rows(const Storage& whole, int64_t begin, const Storage& part) {
  const Matrix w = whole, p = part;
  for (int64_t i = 0; i < p.count(); ++i) REQUIRE(w.as<float>()[begin * w.cols + i] == p.as<float>()[i]);
}

}  // namespace

TEST_CASE("packed documents have the bits of each document alone") {
  const std::vector<int64_t> documents = {3, 1, 5, 7};
  std::vector<int32_t> first_key;
  for (const int64_t length : documents)
    first_key.insert(first_key.end(), size_t(length), int32_t(first_key.size()));
  const int64_t t = int64_t(first_key.size());
  const Operands all = Operands::random(t, t, 1);
  const Results packed = attend(one_head(t, {.first_key = first_key.data()}), all);
  int64_t begin = 0;
  for (const int64_t length : documents) {
    const Results alone =
        attend(one_head(length), {rows_of(all.q, begin, length), rows_of(all.k, begin, length),
                                  rows_of(all.v, begin, length), rows_of(all.dout, begin, length)});
    require_rows(packed.out, begin, alone.out);
    require_rows(packed.lse, begin, alone.lse);
    require_rows(packed.dq, begin, alone.dq);
    require_rows(packed.dk, begin, alone.dk);
    require_rows(packed.dv, begin, alone.dv);
    begin += length;
  }
}

TEST_CASE("the last queries of a sequence have the bits of the whole sequence") {
  const Operands all = Operands::random(9, 9, 2);
  const Results whole = attend(one_head(9), all);
  AttentionShape last = one_head(3, {.query_offset = 6});
  last.keys = 9;
  const Results part = attend(last, {rows_of(all.q, 6, 3), all.k, all.v, rows_of(all.dout, 6, 3)});
  require_rows(whole.out, 6, part.out);
  require_rows(whole.dq, 6, part.dq);
}

TEST_CASE("the CPU computes the last queries of longer sequences as the reference does") {
  constexpr int64_t kKeys = 150;
  const float sinks[] = {0.7f, -0.7f, 0.3f, 1};
  for (const DType dtype : kActivationTypes)
    for (const int64_t head_dim : {10, 16, 64})
      for (const int64_t queries : {1, 17, 70})
        for (const AttentionMask& mask :
             {AttentionMask{}, AttentionMask{.window = 3}, AttentionMask{.window = 65},
              AttentionMask{.window = 100, .cap = 2, .scalars = {sinks}}}) {
          INFO(name_of(dtype) << " D " << head_dim << " queries " << queries << " window " << mask.window);
          Random random(77);
          const Storage q = random.normal(dtype, 2 * queries, 4 * head_dim),
                        k = random.normal(dtype, 2 * kKeys, 2 * head_dim),
                        v = random.normal(dtype, 2 * kKeys, 2 * head_dim);
          AttentionShape shape{.batch = 2,
                               .seq_len = queries,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = head_dim,
                               .scale = 0.5f,
                               .keys = kKeys,
                               .mask = mask};
          shape.mask.query_offset = kKeys - queries;
          std::vector<Storage> out(3, Storage(dtype, 2 * queries, 4 * head_dim, 8)),
              lse(3, Storage(DType::f32, 2 * queries, 4, 0));
          const std::unique_ptr<Backend> backends[] = {make_reference_backend(), make_cpu_backend(1),
                                                       make_cpu_backend(3)};
          for (size_t i = 0; i < out.size(); ++i)
            backends[i]->run(
                *backends[i]->create_stream(),
                AttentionForward{.shape = shape, .q = q, .k = k, .v = v, .out = out[i], .lse = lse[i].f32()});
          CHECK(relative_error(out[1], out[0]) < tolerance::of_op(dtype));
          CHECK(relative_error(lse[1], lse[0]) < tolerance::kOpF32);
          CHECK(out[1].content() == out[2].content());
        }
}

TEST_CASE("a window sees the query itself and the keys before it") {
  constexpr int64_t kWindow = 3, kLength = 8;
  std::vector<int32_t> first_key;
  for (int32_t t = 0; t < kLength; ++t) first_key.push_back(std::max<int32_t>(0, t - int32_t(kWindow) + 1));
  const Operands x = Operands::random(kLength, kLength, 3);
  const Results r = attend(one_head(kLength, {.first_key = first_key.data()}), x);
  for (int64_t t = 0; t < kLength; ++t) {
    const int64_t begin = std::max<int64_t>(0, t - kWindow + 1), keys = t + 1 - begin;
    // The last row of the window's rows alone: it sees all of them.
    const Results alone = attend(one_head(keys), {rows_of(x.q, begin, keys), rows_of(x.k, begin, keys),
                                                  rows_of(x.v, begin, keys), rows_of(x.dout, begin, keys)});
    require_rows(r.out, t, rows_of(alone.out, keys - 1, 1));
  }
  const Results by_window = attend(one_head(kLength, {.window = kWindow}), x);
  for (const auto of : {&Results::out, &Results::lse, &Results::dq, &Results::dk, &Results::dv})
    require_rows(by_window.*of, 0, r.*of);
}

TEST_CASE("a query that sees no key gives nothing and passes nothing back") {
  const std::vector<int32_t> first_key = {1, 1, 3, 3};  // the first and the third see none
  const Operands x = Operands::random(4, 4, 4);
  const Results r = attend(one_head(4, {.first_key = first_key.data()}), x);
  for (const int64_t t : {0, 2})
    for (int64_t c = 0; c < kChannels; ++c) {
      CHECK(r.out.f32()[t * kChannels + c] == 0);
      CHECK(r.dq.f32()[t * kChannels + c] == 0);
      CHECK(r.dk.f32()[t * kChannels + c] == 0);
    }
  CHECK(std::isfinite(r.dv.f32()[kChannels]));
}

TEST_CASE("caps and sinks have the gradients of their formulas") {
  constexpr int64_t kLength = 5;
  const float sink = 0.3f;
  for (const float cap : {0.0f, 1.5f})
    for (const float* sinks : {static_cast<const float*>(nullptr), &sink}) {
      CAPTURE(cap, sinks != nullptr);
      const AttentionShape shape = one_head(kLength, {.cap = cap, .scalars = {sinks}});
      const Operands x = Operands::random(kLength, kLength, 5);
      const Results r = attend(shape, x);
      const auto loss = [&](const Operands& at) {
        const Results moved = attend(shape, at);
        double sum = 0;
        for (int64_t i = 0; i < kLength * kChannels; ++i)
          sum += double(moved.out.f32()[i]) * at.dout.f32()[i];
        return sum;
      };
      for (const auto& [of, gradient] :
           {std::pair{&Operands::q, &r.dq}, {&Operands::k, &r.dk}, {&Operands::v, &r.dv}})
        for (int64_t i = 0; i < kLength * kChannels; ++i) {
          constexpr float kStep = 1e-2f;
          Operands up = x, down = x;
          (up.*of).f32()[i] += kStep;
          (down.*of).f32()[i] -= kStep;
          const double slope = (loss(up) - loss(down)) / (2 * kStep);
          CHECK(gradient->f32()[i] == Approx(slope).margin(tolerance::kFiniteDifference));
        }
    }
}

TEST_CASE("the gradient of a sink is the derivative of the loss") {
  constexpr int64_t kLength = 5;
  for (const float cap : {0.0f, 1.5f})
    for (const int64_t window : {0, 2}) {
      Storage sink(DType::f32, 1, 1, 0);
      sink.set(0, 0, 0.3f);
      const AttentionShape shape = one_head(kLength, {.window = window, .cap = cap, .scalars = {sink.f32()}});
      const Operands x = Operands::random(kLength, kLength, 8);
      Results r = attend(shape, x);
      Storage gradient(DType::f32, 1, 1, 0);
      gradient.set(0, 0, 2.0f);
      const auto stream = reference().create_stream();
      reference().run(*stream, HeadScalarBackward{.rows = {.out = r.out, .dout = x.dout},
                                                  .lse = r.lse.f32(),
                                                  .values = sink,
                                                  .dvalues = gradient,
                                                  .head_dim = kChannels,
                                                  .accumulate = true});
      const auto loss = [&](float value) {
        sink.set(0, 0, value);
        const Results moved = attend(shape, x);
        double sum = 0;
        for (int64_t i = 0; i < kLength * kChannels; ++i) sum += double(moved.out.f32()[i]) * x.dout.f32()[i];
        return sum;
      };
      constexpr float kStep = 1e-2f;
      const double slope = (loss(0.3f + kStep) - loss(0.3f - kStep)) / (2 * kStep);
      CHECK(gradient.get(0, 0) == Approx(2.0 + slope).margin(tolerance::kFiniteDifference));
    }
}

TEST_CASE("a sink takes its share of a row") {
  const float sink = 2;
  const Operands x = Operands::random(1, 1, 6);
  const Results r = attend(one_head(1, {.scalars = {&sink}}), x);
  double score = 0;
  for (int64_t c = 0; c < kChannels; ++c) score += 0.5 * double(x.q.f32()[c]) * x.k.f32()[c];
  const double share = 1 / (1 + std::exp(double(sink) - score));  // sigmoid of the difference
  for (int64_t c = 0; c < kChannels; ++c) CHECK(r.out.f32()[c] == Approx(share * x.v.f32()[c]));
}

}  // namespace trainctl::kernels::test
