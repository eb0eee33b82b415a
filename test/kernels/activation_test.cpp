// Goal: activations and losses agree with the reference, also in the tails, and never swallow a NaN or an overflow.
// Method: ragged shapes against the reference, every exponent of x by element, special values.
#include "support.h"

namespace trainctl::kernels::test {

TEST_CASE("gelu and swiglu agree with the reference") {
  Random random(31);
  for (DType dtype : kActivationTypes) {
    for (auto [rows, cols] : {std::pair{1, 1}, {3, 17}, {7, 64}, {2, 40001}, {129, 300}}) {
      const Storage x = random.normal(dtype, rows, cols, 3, 2.0f), up = random.normal(dtype, rows, cols, 2);
      const Storage dy = random.normal(dtype, rows, cols, 1);
      Storage a(dtype, rows, cols, 4), b(dtype, rows, cols, 0), c(dtype, rows, cols, 0), d(dtype, rows, cols, 5);
      Storage e(dtype, rows, cols, 0);
      for (Storage* poisoned : {&a, &b, &c, &d, &e}) {
        poisoned->fill(kPoison);
      }
      const double t = tolerance::of_op(dtype);
      compare({a, b, c, d, e, dy}, {t, t, t, t, t, t}, [&](Backend& backend, Stream& s, auto& o) {
        backend.run(s, ActivationForward{.x = x, .y = o[0]});
        backend.run(s, ActivationBackward{.x = x, .dy = dy, .dx = o[1]});
        backend.run(s, GatedForward{.gate = x, .up = up, .y = o[2]});
        backend.run(s, GatedBackward{.gate = x, .up = up, .dy = dy, .dgate = o[3], .dup = o[4]});
        backend.run(s, ActivationBackward{.x = x, .dy = o[5], .dx = o[5]});
      });
    }
  }
}

TEST_CASE("each activation is accurate at every size of its argument") {
  Storage x(DType::f32, 1, 4000, 0), one(DType::f32, 1, 4000, 0);
  one.fill(1.0f);
  for (int i = 0; i < 4000; ++i) {
    x.set(0, i, (i % 2 == 0 ? 1.0f : -1.0f) * std::pow(10.0f, -12.0f + 14.0f * float(i) / 4000.0f));
  }
  const auto s = reference().create_stream();
  const auto run = [&](Backend& b) {
    std::vector<Storage> o(4, Storage(DType::f32, 1, 4000, 0));
    Storage up = o[0];
    b.run(*s, ActivationForward{.x = x, .y = o[0]});
    b.run(*s, ActivationBackward{.x = x, .dy = one, .dx = o[1]});
    b.run(*s, GatedForward{.gate = x, .up = one, .y = o[2]});
    b.run(*s, GatedBackward{.gate = x, .up = one, .dy = one, .dgate = o[3], .dup = up});
    return o;
  };
  const std::vector<Storage> expected = run(reference());
  for (const Candidate& c : candidates()) {
    const std::vector<Storage> got = run(*c.backend);
    for (size_t op = 0; op < 4; ++op) {
      double worst = 0;
      for (int i = 0; i < 4000; ++i) {
        const double want = expected[op].get(0, i), have = got[op].get(0, i);
        // a derivative crosses 0, where only its absolute error means anything
        const double floor = op % 2 == 0 ? 1e-4 : 1e-2;
        worst = std::max(worst, std::abs(have - want) / std::max(std::abs(want), floor));
      }
      INFO(c.name << " op " << op);
      CHECK(worst < tolerance::kOpF32);
    }
  }
}

TEST_CASE("activations pass NaN on and saturate at infinity") {
  for (const Candidate& c : candidates()) {
    const auto s = c.backend->create_stream();
    Storage x(DType::f32, 1, 4, 0), y(DType::f32, 1, 4, 0), one(DType::f32, 1, 4, 0), dx(DType::f32, 1, 4, 0);
    one.fill(1.0f);
    const float values[] = {NAN, INFINITY, 1e30f, -1e30f};
    for (int i = 0; i < 4; ++i) {
      x.set(0, i, values[i]);
    }
    c.backend->run(*s, ActivationForward{.x = x, .y = y});
    c.backend->run(*s, ActivationBackward{.x = x, .dy = one, .dx = dx});
    CHECK(std::isnan(y.get(0, 0)));
    CHECK(std::isnan(dx.get(0, 0)));
    CHECK(std::isinf(y.get(0, 1)));
    CHECK(y.get(0, 2) == 1e30f);
    CHECK(dx.get(0, 2) == 1.0f);
    CHECK(y.get(0, 3) == 0.0f);
    CHECK(std::abs(dx.get(0, 3)) < tolerance::kSaturated);
    c.backend->run(*s, GatedForward{.gate = x, .up = one, .y = y});
    CHECK(std::isnan(y.get(0, 0)));
    CHECK(y.get(0, 2) == 1e30f);
    CHECK(y.get(0, 3) == 0.0f);
  }
}

TEST_CASE("cross entropy agrees with the reference, whole and in slices") {
  Random random(32);
  for (DType dtype : kActivationTypes) {
    for (auto [rows, vocab] : {std::pair{1, 1}, {5, 7}, {9, 300}, {3, 50257}}) {
      INFO(rows << " rows, vocabulary " << vocab << " " << name_of(dtype));
      const Storage logits = random.normal(dtype, rows, vocab, 3, 4.0f);
      const std::vector<int32_t> targets = random.ids(rows, 0, vocab - 1);
      Storage stats(DType::f32, rows, 3, 0), loss(DType::f32, 2, rows, 0);
      stats.fill(kPoison);
      loss.fill(kPoison);
      const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
      const double of_logits = vocab == 1 ? tolerance::kUnchecked : t;
      compare({logits, stats, loss}, {of_logits, f, f}, [&](Backend& b, Stream& s, auto& o) {
        b.run(s, CrossEntropyStats{.logits = o[0], .targets = targets.data(), .stats = o[1].f32()});
        b.run(s, CrossEntropyCombine{.stats = o[1].f32(), .parts = 1, .m = rows, .lse = o[2].f32(),
                                     .loss = o[2].f32() + rows});
        b.run(s, CrossEntropyBackward{.logits = o[0], .targets = targets.data(), .lse = o[2].f32(),
                                      .scale = 0.125f});
        // A relative tolerance says nothing about the gradient of a single class, which is zero.
        if (vocab == 1) CHECK(std::abs(o[0].get(0, 0)) <= tolerance::kZeroGradient);
      });
    }
  }
}

TEST_CASE("vocabulary slices give the loss of the whole vocabulary") {
  Random random(33);
  const int64_t rows = 11, vocab = 90;
  const Storage logits = random.normal(DType::f32, rows, vocab, 0, 3.0f);
  const std::vector<int32_t> targets = random.ids(rows, 0, vocab - 1);
  for (const Candidate& c : candidates()) {
    const auto s = c.backend->create_stream();
    Storage whole(DType::f32, rows, 3, 0), parts(DType::f32, 3 * rows, 3, 0), a(DType::f32, 2, rows, 0), b = a;
    c.backend->run(*s, CrossEntropyStats{.logits = logits, .targets = targets.data(), .stats = whole.f32()});
    for (int64_t part = 0; part < 3; ++part) {
      c.backend->run(*s, CrossEntropyStats{.logits = logits->columns(part * 30, 30),
                                           .targets = targets.data(), .vocab_begin = part * 30,
                                           .stats = parts.f32() + part * rows * 3});
    }
    c.backend->run(*s, CrossEntropyCombine{.stats = whole.f32(), .parts = 1, .m = rows, .lse = a.f32(),
                                           .loss = a.f32() + rows});
    c.backend->run(*s, CrossEntropyCombine{.stats = parts.f32(), .parts = 3, .m = rows, .lse = b.f32(),
                                           .loss = b.f32() + rows});
    CHECK(relative_error(b, a) < tolerance::kJoinedSlices);
  }
}

TEST_CASE("a NaN or infinite logit makes the loss NaN") {
  for (float bad : {NAN, INFINITY}) {
    for (int64_t where : {0, 17, 39}) {
      for (const Candidate& c : candidates()) {
        Random random(34);
        Storage logits = random.normal(DType::f32, 1, 40), stats(DType::f32, 1, 3, 0), loss(DType::f32, 1, 2, 0);
        logits.set(0, where, bad);
        const int32_t target = 5;
        const auto s = c.backend->create_stream();
        c.backend->run(*s, CrossEntropyStats{.logits = logits, .targets = &target, .stats = stats.f32()});
        c.backend->run(*s, CrossEntropyCombine{.stats = stats.f32(), .parts = 1, .m = 1, .lse = loss.f32(),
                                               .loss = loss.f32() + 1});
        CHECK(!std::isfinite(loss.get(0, 1)));
      }
    }
  }
}

}  // namespace trainctl::kernels::test
