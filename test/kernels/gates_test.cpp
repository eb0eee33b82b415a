// Goal: every kind of activation and of gate agrees with the reference, whose gradients are the derivatives.
// Method: ragged shapes, columns of wider matrices, in place; each size of the argument; special values; limits hit and
// passed; central differences.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

/// Of all rows.
template <typename Kind>
std::vector<Kind> kinds_of() {
  std::vector<Kind> kinds;
  for (const FfnActivationRow& row : kFfnActivations)
    if (const Kind* kind = std::get_if<Kind>(&row.kernel)) kinds.push_back(*kind);
  return kinds;
}
const std::vector<Activation> kActivations = kinds_of<Activation>();
const std::vector<Gate> kGates = kinds_of<Gate>();
constexpr float kLimit = 1.5f, kAlpha = 1.702f;

}  // namespace

TEST_CASE("activations and gates of every kind agree with the reference") {
  Random random(81);
  for (DType dtype : kActivationTypes) {
    for (auto [rows, cols] : {std::pair{1, 1}, {3, 17}, {7, 64}, {2, 20001}, {65, 300}}) {
      const Storage gate_and_up = random.normal(dtype, rows, 2 * cols, 3, 2.0f),
                    dy = random.normal(dtype, rows, cols, 1);
      const Matrix gate = gate_and_up->columns(0, cols), up = gate_and_up->columns(cols, cols);
      Storage a(dtype, rows, cols, 4), b(dtype, rows, 2 * cols, 5);
      a.fill(kPoison), b.fill(kPoison);
      const double t = tolerance::of_op(dtype);
      for (const Activation kind : kActivations) {
        INFO("activation " << int(kind) << " [" << rows << ", " << cols << "] " << name_of(dtype));
        compare({a, dy}, {t, t}, [&](Backend& backend, Stream& s, auto& o) {
          backend.run(s, ActivationForward{.kind = kind, .x = gate, .y = o[0]});
          backend.run(s, ActivationBackward{.kind = kind, .x = gate, .dy = o[1], .dx = o[1]});
        });
      }
      for (const Gate kind : kGates) {
        INFO("gate " << int(kind) << " [" << rows << ", " << cols << "] " << name_of(dtype));
        compare({a, b}, {t, t}, [&](Backend& backend, Stream& s, auto& o) {
          backend.run(s,
                      GatedForward{
                          .kind = kind, .gate = gate, .up = up, .y = o[0], .limit = kLimit, .alpha = kAlpha});
          backend.run(s, GatedBackward{.kind = kind,
                                       .gate = gate,
                                       .up = up,
                                       .dy = dy,
                                       .dgate = o[1]->columns(0, cols),
                                       .dup = o[1]->columns(cols, cols),
                                       .limit = kLimit,
                                       .alpha = kAlpha});
        });
      }
      compare({a, b, gate_and_up, dy}, {t, t, t, t}, [&](Backend& backend, Stream& s, auto& o) {
        const Matrix of_gate = o[1]->columns(0, cols), of_x = o[1]->columns(cols, cols);
        backend.run(s, SigmoidGateForward{.x = up, .gate = gate, .y = o[0]});
        backend.run(s, SigmoidGateBackward{.x = up, .gate = gate, .dy = dy, .dx = of_x, .dgate = of_gate});
        backend.run(s, SigmoidGateForward{
                           .x = o[2]->columns(cols, cols), .gate = gate, .y = o[2]->columns(cols, cols)});
        backend.run(s, SigmoidGateBackward{.x = up, .gate = gate, .dy = o[3], .dx = o[3], .dgate = of_gate});
      });
    }
  }
}

TEST_CASE("activations of every kind are accurate at every size of their argument") {
  Storage x(DType::f32, 1, 4000, 0), one(DType::f32, 1, 4000, 0);
  one.fill(1.0f);
  for (int i = 0; i < 4000; ++i) {
    x.set(0, i, (i % 2 == 0 ? 1.0f : -1.0f) * std::pow(10.0f, -12.0f + 14.0f * float(i) / 4000.0f));
  }
  const auto s = reference().create_stream();
  for (const Activation kind : kActivations) {
    const auto run = [&](Backend& b) {
      std::vector<Storage> o(2, Storage(DType::f32, 1, 4000, 0));
      b.run(*s, ActivationForward{.kind = kind, .x = x, .y = o[0]});
      b.run(*s, ActivationBackward{.kind = kind, .x = x, .dy = one, .dx = o[1]});
      return o;
    };
    const std::vector<Storage> expected = run(reference());
    for (const Candidate& c : candidates()) {
      const std::vector<Storage> got = run(*c.backend);
      for (size_t op = 0; op < 2; ++op) {
        double worst = 0;
        for (int i = 0; i < 4000; ++i) {
          const double want = expected[op].get(0, i), have = got[op].get(0, i);
          const double floor =
              op == 0 ? 1e-4 : 1e-2;  // a derivative crosses 0, where only its absolute error counts
          worst = std::max(worst, std::abs(have - want) / std::max(std::abs(want), floor));
        }
        INFO(c.name << " activation " << int(kind) << (op == 0 ? " forward" : " backward"));
        CHECK(worst < tolerance::kOpF32);
      }
    }
  }
}

TEST_CASE("activations and gates of every kind pass NaN on and saturate") {
  Storage x(DType::f32, 1, 4, 0), one(DType::f32, 1, 4, 0);
  one.fill(1.0f);
  const float values[] = {NAN, 1e15f, -1e15f, 0.0f};
  for (int i = 0; i < 4; ++i) x.set(0, i, values[i]);
  for (const Candidate& c : candidates()) {
    INFO(c.name);
    const auto s = c.backend->create_stream();
    Storage y(DType::f32, 1, 4, 0), dx = y, dup = y;
    for (const Activation kind : kActivations) {
      INFO("activation " << int(kind));
      const bool squares = kind == Activation::relu2;
      c.backend->run(*s, ActivationForward{.kind = kind, .x = x, .y = y});
      c.backend->run(*s, ActivationBackward{.kind = kind, .x = x, .dy = one, .dx = dx});
      CHECK((std::isnan(y.get(0, 0)) && std::isnan(dx.get(0, 0))));
      CHECK(y.get(0, 1) == (squares ? 1e15f * 1e15f : 1e15f));
      CHECK(dx.get(0, 1) == (squares ? 2e15f : 1.0f));
      CHECK(y.get(0, 2) == 0.0f);
      CHECK(std::abs(dx.get(0, 2)) < tolerance::kSaturated);
      CHECK(y.get(0, 3) == 0.0f);
    }
    for (const Gate kind : kGates) {
      INFO("gate " << int(kind));
      for (const bool in_gate : {true, false}) {
        const Storage &gate = in_gate ? x : one, &up = in_gate ? one : x;
        c.backend->run(
            *s, GatedForward{.kind = kind, .gate = gate, .up = up, .y = y, .limit = kLimit, .alpha = kAlpha});
        c.backend->run(*s, GatedBackward{.kind = kind,
                                         .gate = gate,
                                         .up = up,
                                         .dy = one,
                                         .dgate = dx,
                                         .dup = dup,
                                         .limit = kLimit,
                                         .alpha = kAlpha});
        CHECK((std::isnan(y.get(0, 0)) && std::isnan(dx.get(0, 0))));
        CHECK(std::isfinite(y.get(0, 1)));
        CHECK(std::isfinite(y.get(0, 2)));
      }
    }
  }
}

TEST_CASE("a clamped gate gives what its formula says, and no gradient beyond its limits") {
  // gate: within, beyond its limit, far below; up: within, beyond both limits
  const float gates[] = {0.5f, 2.5f, -9.0f, 0.5f, 0.5f, 1.5f},
              ups[] = {0.25f, 0.25f, 0.25f, 4.0f, -4.0f, -1.5f};
  std::vector<Backend*> backends = {&reference()};
  for (const Candidate& c : candidates()) backends.push_back(c.backend.get());
  for (Backend* b : backends) {
    const auto s = b->create_stream();
    Storage gate(DType::f32, 1, 6, 0), up = gate, one = gate, y = gate, dgate = gate, dup = gate;
    one.fill(1.0f);
    for (int i = 0; i < 6; ++i) gate.set(0, i, gates[i]), up.set(0, i, ups[i]);
    b->run(*s, GatedForward{
                   .kind = Gate::clamped, .gate = gate, .up = up, .y = y, .limit = kLimit, .alpha = kAlpha});
    b->run(*s, GatedBackward{.kind = Gate::clamped,
                             .gate = gate,
                             .up = up,
                             .dy = one,
                             .dgate = dgate,
                             .dup = dup,
                             .limit = kLimit,
                             .alpha = kAlpha});
    for (int i = 0; i < 6; ++i) {
      const double g = std::min(gates[i], kLimit), u = std::max(-kLimit, std::min(ups[i], kLimit));
      CHECK(y.get(0, i) == Approx((u + 1) * g / (1 + std::exp(-kAlpha * g))).epsilon(tolerance::kOpF32));
    }
    CHECK(dgate.get(0, 0) != 0.0f);
    CHECK(dgate.get(0, 1) == 0.0f);
    CHECK(dup.get(0, 1) != 0.0f);
    CHECK(dup.get(0, 3) == 0.0f);
    CHECK(dup.get(0, 4) == 0.0f);
    CHECK(dgate.get(0, 3) != 0.0f);
    CHECK(dgate.get(0, 5) != 0.0f);  // on the limit
    CHECK(dup.get(0, 5) != 0.0f);
  }
}

TEST_CASE("the reference's gradients of activations and gates are derivatives") {
  Backend& b = reference();
  const auto s = b.create_stream();
  // No value nearer to a limit (1.5) than a central difference reaches.
  const float values[] = {-3.1f, -1.7f, -1.2f, -0.4f, 0.1f, 0.9f, 1.3f, 1.8f, 2.6f};
  Storage x(DType::f32, 1, 9, 0), up = x, dy = x, y = x, dx = x, dup = x;
  for (int i = 0; i < 9; ++i) {
    x.set(0, i, values[i]), up.set(0, i, values[(i * 4 + 3) % 9]),
        dy.set(0, i, 0.3f * values[(i * 2 + 1) % 9]);
  }
  for (const Activation kind : kActivations) {
    INFO("activation " << int(kind));
    const auto loss = [&] {
      b.run(*s, ActivationForward{.kind = kind, .x = x, .y = y});
      return dot(y, dy);
    };
    b.run(*s, ActivationBackward{.kind = kind, .x = x, .dy = dy, .dx = dx});
    check_derivative(loss, x, dx);
  }
  for (const Gate kind : kGates) {
    INFO("gate " << int(kind));
    const auto loss = [&] {
      b.run(*s, GatedForward{.kind = kind, .gate = x, .up = up, .y = y, .limit = kLimit, .alpha = kAlpha});
      return dot(y, dy);
    };
    b.run(*s, GatedBackward{.kind = kind,
                            .gate = x,
                            .up = up,
                            .dy = dy,
                            .dgate = dx,
                            .dup = dup,
                            .limit = kLimit,
                            .alpha = kAlpha});
    check_derivative(loss, x, dx);
    check_derivative(loss, up, dup);
  }
  const auto loss = [&] {
    b.run(*s, SigmoidGateForward{.x = x, .gate = up, .y = y});
    return dot(y, dy);
  };
  b.run(*s, SigmoidGateBackward{.x = x, .gate = up, .dy = dy, .dx = dx, .dgate = dup});
  check_derivative(loss, x, dx);
  check_derivative(loss, up, dup);
}

}  // namespace trainctl::kernels::test
