// Goal: the loss of formed logits, with weights of rows, a z-loss and tokens without a loss, agrees with the reference,
// whose gradient is the derivative of the loss.
// Method: ragged shapes against the reference, whole and in slices of the vocabulary; forms by hand; central differences.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

const LogitForm kForms[] = {{}, {.scale = 0.5f}, {.cap = 30.0f}, {.scale = 1.5f, .cap = 5.0f}};

struct Loss {
  LogitForm form = {};
  const float* weights = nullptr;
  float z_loss = 0;
};

/// Stats and loss: stats [M, 3], rows [2, M] = (lse, loss).
void run_loss(Backend& b, Stream& s, const Loss& loss, const Matrix& logits,
              const std::vector<int32_t>& targets, Storage& stats, Storage& rows) {
  b.run(s, CrossEntropyStats{
               .logits = logits, .targets = targets.data(), .stats = stats.f32(), .form = loss.form});
  b.run(s, CrossEntropyCombine{.stats = stats.f32(),
                               .parts = 1,
                               .m = logits.rows,
                               .lse = rows.f32(),
                               .loss = rows.f32() + logits.rows,
                               .targets = targets.data(),
                               .weights = loss.weights,
                               .z_loss = loss.z_loss});
}

}  // namespace

TEST_CASE("cross entropy of formed logits, weights and a z-loss agrees with the reference") {
  Random random(91);
  for (DType dtype : kActivationTypes) {
    for (auto [m, vocab] : {std::pair{5, 7}, {9, 300}, {3, 20011}}) {
      const Storage logits = random.normal(dtype, m, vocab, 3, 4.0f),
                    weights = random.normal(DType::f32, 1, m, 0, 0.3f, 1.0f);
      std::vector<int32_t> targets = random.ids(m, 0, vocab - 1);
      targets[1] = -1;
      Storage stats(DType::f32, m, 3, 0), rows(DType::f32, 2, m, 0);
      stats.fill(kPoison), rows.fill(kPoison);
      const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
      for (const LogitForm& form : kForms) {
        for (const float z_loss : {0.0f, 0.01f}) {
          for (const bool weighted : {false, true}) {
            INFO(m << " rows, vocabulary " << vocab << " " << name_of(dtype) << " scale " << form.scale
                   << " cap " << form.cap << " z " << z_loss << " weighted " << weighted);
            const Loss loss{form, weighted ? weights.f32() : nullptr, z_loss};
            compare({logits, stats, rows}, {t, f, f}, [&](Backend& b, Stream& s, auto& o) {
              run_loss(b, s, loss, o[0], targets, o[1], o[2]);
              b.run(s, CrossEntropyBackward{.logits = o[0],
                                            .targets = targets.data(),
                                            .lse = o[2].f32(),
                                            .scale = 0.125f,
                                            .form = form,
                                            .weights = loss.weights,
                                            .z_loss = z_loss});
              CHECK(o[1].get(1, 2) == 0.0f);
              CHECK(o[2].get(1, 1) == 0.0f);
              CHECK(o[2].get(1, 0) != 0.0f);
              int64_t nonzero = 0;
              for (int64_t c = 0; c < vocab; ++c) nonzero += o[0].get(1, c) != 0.0f;
              CHECK(nonzero == 0);
            });
          }
        }
      }
    }
  }
}

TEST_CASE("logits are formed in place as the loss forms them") {
  Random random(92);
  for (DType dtype : kActivationTypes) {
    for (const LogitForm& form : kForms) {
      for (auto [m, vocab] : {std::pair{1, 1}, {4, 19}, {3, 40001}}) {
        const Storage logits = random.normal(dtype, m, vocab, 2, 8.0f);
        compare({logits}, {tolerance::of_op(dtype)}, [&](Backend& b, Stream& s, auto& o) {
          b.run(s, FormLogits{.logits = o[0], .form = form});
          const double l = logits.get(m - 1, vocab - 1),
                       want = form.cap > 0 ? form.cap * std::tanh(form.scale * l / form.cap) : form.scale * l;
          CHECK(o[0].get(m - 1, vocab - 1) == Approx(want).epsilon(tolerance::of_op(dtype)));
          if (form.is_plain()) CHECK(o[0].content() == logits.content());
        });
      }
    }
  }
}

TEST_CASE("a cap keeps its digits at every size of a logit, and limits every one") {
  const LogitForm form{.scale = 1.0f, .cap = 30.0f};
  const auto s = reference().create_stream();
  for (const Candidate& c : candidates()) {
    Storage logits(DType::f32, 1, 2000, 0);
    double worst = 0;
    for (int i = 0; i < 2000; ++i) {
      logits.set(0, i, (i % 2 == 0 ? 1.0f : -1.0f) * std::pow(10.0f, -10.0f + 14.0f * float(i) / 2000.0f));
    }
    const Storage before = logits;
    c.backend->run(*s, FormLogits{.logits = logits, .form = form});
    for (int i = 0; i < 2000; ++i) {
      const double want = 30.0 * std::tanh(double(before.get(0, i)) / 30.0);
      worst = std::max(worst, std::abs(logits.get(0, i) / want - 1));
    }
    INFO(c.name);
    CHECK(worst < tolerance::kJoinedSlices);
    logits.set(0, 3, NAN);
    c.backend->run(*s, FormLogits{.logits = logits, .form = form});
    CHECK(std::isnan(logits.get(0, 3)));
  }
}

TEST_CASE("slices of formed logits give the loss of the whole, and tokens without a loss none") {
  Random random(93);
  const int64_t m = 11, vocab = 90;
  const LogitForm form{.scale = 0.7f, .cap = 6.0f};
  const Storage logits = random.normal(DType::f32, m, vocab, 0, 3.0f),
                weights = random.normal(DType::f32, 1, m);
  std::vector<int32_t> targets = random.ids(m, 0, vocab - 1);
  targets[0] = -1, targets[7] = -100;
  for (const Candidate& c : candidates()) {
    const auto s = c.backend->create_stream();
    Storage whole(DType::f32, m, 3, 0), parts(DType::f32, 3 * m, 3, 0), a(DType::f32, 2, m, 0),
        b = a, joined = logits;
    run_loss(*c.backend, *s, {form, weights.f32(), 0.02f}, logits, targets, whole, a);
    for (int64_t part = 0; part < 3; ++part) {
      c.backend->run(*s, CrossEntropyStats{.logits = logits->columns(part * 30, 30),
                                           .targets = targets.data(),
                                           .vocab_begin = part * 30,
                                           .stats = parts.f32() + part * m * 3,
                                           .form = form});
      CHECK(parts.get(part * m, 2) == 0.0f);
      CHECK(parts.get(part * m + 7, 2) == 0.0f);
    }
    c.backend->run(*s, CrossEntropyCombine{.stats = parts.f32(),
                                           .parts = 3,
                                           .m = m,
                                           .lse = b.f32(),
                                           .loss = b.f32() + m,
                                           .targets = targets.data(),
                                           .weights = weights.f32(),
                                           .z_loss = 0.02f});
    CHECK(relative_error(b, a) < tolerance::kJoinedSlices);
    CHECK(b.get(1, 0) == 0.0f);
    CHECK(b.get(1, 7) == 0.0f);
    Storage gradient = logits;
    const auto backward = [&](Matrix of, int64_t begin) {
      c.backend->run(*s, CrossEntropyBackward{.logits = of,
                                              .targets = targets.data(),
                                              .vocab_begin = begin,
                                              .lse = a.f32(),
                                              .form = form,
                                              .weights = weights.f32(),
                                              .z_loss = 0.02f});
    };
    backward(gradient, 0);
    for (int64_t part = 0; part < 3; ++part) backward(joined->columns(part * 30, 30), part * 30);
    CHECK(relative_error(joined, gradient) < tolerance::kJoinedSlices);
  }
}

TEST_CASE("a form, weights of one and a z-loss of nothing change no bit") {
  Random random(94);
  const Storage logits = random.normal(DType::bf16, 6, 333, 0, 3.0f);
  const std::vector<int32_t> targets = random.ids(6, 0, 332);
  Storage ones(DType::f32, 1, 6, 0);
  ones.fill(1.0f);
  for (const Candidate& c : candidates()) {
    const auto s = c.backend->create_stream();
    Storage stats(DType::f32, 6, 3, 0), a(DType::f32, 2, 6, 0), b = a, da = logits, db = logits;
    c.backend->run(*s, CrossEntropyStats{.logits = logits, .targets = targets.data(), .stats = stats.f32()});
    c.backend->run(*s, CrossEntropyCombine{
                           .stats = stats.f32(), .parts = 1, .m = 6, .lse = a.f32(), .loss = a.f32() + 6});
    run_loss(*c.backend, *s, {.weights = ones.f32()}, logits, targets, stats, b);
    CHECK(a.content() == b.content());
    c.backend->run(
        *s, CrossEntropyBackward{.logits = da, .targets = targets.data(), .lse = a.f32(), .scale = 0.3f});
    c.backend->run(
        *s,
        CrossEntropyBackward{
            .logits = db, .targets = targets.data(), .lse = a.f32(), .scale = 0.3f, .weights = ones.f32()});
    CHECK(da.content() == db.content());
  }
}

TEST_CASE("the reference's gradient of a loss with forms, weights and a z-loss is its derivative") {
  Random random(95);
  Backend& b = reference();
  const auto s = b.create_stream();
  const int64_t m = 3, vocab = 5;
  const std::vector<int32_t> targets = {2, -1, 4};
  const Storage weights = random.normal(DType::f32, 1, m, 0, 0.3f, 1.0f);
  for (const LogitForm& form : kForms) {
    for (const float z_loss : {0.0f, 0.1f}) {
      INFO("scale " << form.scale << " cap " << form.cap << " z " << z_loss);
      const Loss loss{form, weights.f32(), z_loss};
      Storage logits = random.normal(DType::f32, m, vocab), stats(DType::f32, m, 3, 0),
              rows(DType::f32, 2, m, 0);
      const auto total = [&] {
        run_loss(b, *s, loss, logits, targets, stats, rows);
        return double(rows.get(1, 0)) + rows.get(1, 1) + rows.get(1, 2);
      };
      total();
      Storage gradient = logits;
      b.run(*s, CrossEntropyBackward{.logits = gradient,
                                     .targets = targets.data(),
                                     .lse = rows.f32(),
                                     .form = form,
                                     .weights = weights.f32(),
                                     .z_loss = z_loss});
      check_derivative(total, logits, gradient);
    }
  }
}

}  // namespace trainctl::kernels::test
