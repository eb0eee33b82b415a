// Goal: the ops of a mixture of experts agree with the reference, whose gradients are the derivatives,
// however unevenly experts are used.
// Method: routings by hand (ragged, empty experts, one that gets all, all for each token) and by scores;
// ties; central differences of the weights and of both losses; a whole layer's passes chained.
#include "support.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

namespace trainctl::kernels::test {

namespace {

/// Experts of M tokens.
struct Routing {
  const char* name;
  int64_t experts, k;
  std::vector<int32_t> ids;
  int64_t tokens() const { return int64_t(ids.size()) / k; }
};

Routing routing(const char* name, int64_t tokens, int64_t experts, int64_t k,
                std::function<int32_t(int64_t, int64_t)> of) {
  Routing r{name, experts, k, {}};
  for (int64_t m = 0; m < tokens; ++m)
    for (int64_t j = 0; j < k; ++j) r.ids.push_back(of(m, j));
  return r;
}

std::vector<Routing> routings() {
  return {routing("one token", 1, 1, 1, [](int64_t, int64_t) { return 0; }),
          routing("one gets all", 70, 4, 1, [](int64_t, int64_t) { return 2; }),
          routing("all for each", 13, 3, 3, [](int64_t m, int64_t j) { return int32_t((m + j) % 3); }),
          routing("ragged, some empty", 67, 7, 2,
                  [](int64_t m, int64_t j) {
                    return int32_t(j == 0 ? (m % 5 == 0 ? 5 : 1) : (m % 3 == 0 ? 6 : 3));
                  }),
          routing("uneven", 600, 5, 2,
                  [](int64_t m, int64_t j) { return int32_t(m < 599 ? (j == 0 ? 4 : m % 4) : j); })};
}

Matrix ints(std::vector<int32_t>& v, int64_t rows, int64_t cols) {
  return matrix(v.data(), DType::i32, rows, cols);
}

/// offsets, slots, rows.
struct Sorted {
  std::vector<int32_t> offsets, slots, rows;
  Matrix at, slot, row;
  explicit Sorted(Routing& r) : offsets(size_t(r.experts) + 1), slots(r.ids.size()), rows(r.ids.size()) {
    at = ints(offsets, 1, r.experts + 1);
    slot = ints(slots, 1, int64_t(slots.size()));
    row = ints(rows, 1, int64_t(rows.size()));
    reference().run(*reference().create_stream(), op(r));
  }
  SortByExpert op(Routing& r) const {
    return {.ids = ints(r.ids, r.tokens(), r.k), .offsets = at, .slots = slot, .rows = row};
  }
};

Storage integers(int64_t rows, int64_t cols) { return Storage(DType::i32, rows, cols, 0); }

std::unique_ptr<PackedWeight> packed(Backend& b, Stream& s, const Matrix& w) {
  auto weight = b.make_packed(w.rows, w.cols, w.dtype);
  b.run(s, Pack{.w = w, .packed = weight.get()});
  return weight;
}

constexpr Router kRouters[] = {{},
                               {.renormalize = false, .scale = 1.5f},
                               {.score = RouterScore::sigmoid, .scale = 2.5f},
                               {.score = RouterScore::sigmoid, .renormalize = false},
                               {.score = RouterScore::sqrt_softplus, .scale = 2.5f},
                               {.score = RouterScore::sqrt_softplus, .renormalize = false}};

}  // namespace

TEST_CASE("rows of experts are sorted, gathered, weighted and combined as by the reference") {
  Random random(101);
  for (Routing r : routings()) {
    const int64_t tokens = r.tokens(), rows = int64_t(r.ids.size());
    const Sorted sorted(r);
    CHECK(sorted.offsets.back() == rows);
    for (int64_t i = 1; i < rows; ++i)  // by expert, then in order of slots
      CHECK(std::pair(r.ids[size_t(sorted.slots[size_t(i - 1)])], sorted.slots[size_t(i - 1)]) <
            std::pair(r.ids[size_t(sorted.slots[size_t(i)])], sorted.slots[size_t(i)]));
    compare({integers(1, r.experts + 1), integers(1, rows), integers(1, rows)}, {0, 0, 0},
            [&](Backend& b, Stream& s, auto& o) {
              b.run(s, SortByExpert{
                           .ids = ints(r.ids, tokens, r.k), .offsets = o[0], .slots = o[1], .rows = o[2]});
            });
    for (DType dtype : kActivationTypes)
      for (const int64_t cols : {1, 17, 64}) {
        INFO(r.name << " " << cols << " columns " << name_of(dtype));
        const Storage x = random.normal(dtype, tokens, cols, 3), by_row = random.normal(dtype, rows, cols, 2),
                      dy = random.normal(dtype, rows, cols, 1),
                      weights = random.normal(DType::f32, tokens, r.k);
        Storage wide(dtype, rows, cols, 4), narrow(dtype, tokens, cols, 5), dots(DType::f32, tokens, r.k, 0);
        wide.fill(kPoison), narrow.fill(kPoison), dots.fill(kPoison);
        const double t = tolerance::of_op(dtype);
        compare({wide, narrow, wide, dots, dy}, {0, t, t, tolerance::kOpF32, t},
                [&](Backend& b, Stream& s, auto& o) {
                  b.run(s, GatherRows{.x = x, .slots = sorted.slot, .out = o[0], .top_k = r.k});
                  b.run(s, CombineRows{.x = by_row, .rows = sorted.row, .out = o[1]});
                  b.run(s, ScaleRows{.x = by_row, .weights = weights, .slots = sorted.slot, .y = o[2]});
                  b.run(s, ScaleRowsBackward{.x = by_row,
                                             .weights = weights,
                                             .slots = sorted.slot,
                                             .dy = o[4],
                                             .dweights = o[3],
                                             .dx = o[4]});
                });
      }
  }
}

TEST_CASE("biases of experts and gates of rows agree with the reference") {
  Random random(106);
  for (Routing r : routings()) {
    const Sorted sorted(r);
    const int64_t tokens = r.tokens(), rows = int64_t(r.ids.size());
    for (DType dtype : kActivationTypes)
      for (const int64_t cols : {1, 17, 300}) {
        INFO(r.name << " " << cols << " columns " << name_of(dtype));
        const Storage dy = random.normal(dtype, rows, cols, 2), x = random.normal(dtype, tokens, cols, 1),
                      dx = random.normal(dtype, tokens, cols, 3),
                      weights = random.normal(DType::f32, tokens, r.k),
                      bias = random.normal(DType::f32, r.experts, cols),
                      logits = random.normal(DType::f32, tokens, 1, 0, 3.0f);
        const Storage rows_of = random.normal(dtype, rows, cols, 3);
        Storage fresh(DType::f32, r.experts, cols, 0), gated(dtype, tokens, cols, 2),
            dlogits(DType::f32, tokens, 1, 0);
        fresh.fill(kPoison), gated.fill(kPoison), dlogits.fill(kPoison);
        const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
        compare(
            {rows_of, rows_of, fresh, bias, weights, gated, dlogits, dx}, {t, t, f, f, f, t, f, t},
            [&](Backend& b, Stream& s, auto& o) {
              b.run(s, AddExpertBias{.x = o[0], .bias = bias, .offsets = sorted.at});
              b.run(s, AddExpertBias{.x = o[1],
                                     .bias = bias,
                                     .offsets = sorted.at,
                                     .weights = weights,
                                     .slots = sorted.slot});
              b.run(s, ExpertBiasBackward{.dy = dy, .offsets = sorted.at, .dbias = o[2]});
              b.run(s, ExpertBiasBackward{.dy = dy,
                                          .offsets = sorted.at,
                                          .weights = weights,
                                          .slots = sorted.slot,
                                          .dbias = o[3],
                                          .accumulate = true});
              b.run(
                  s,
                  ExpertBiasWeights{
                      .dy = dy, .bias = bias, .offsets = sorted.at, .slots = sorted.slot, .dweights = o[4]});
              b.run(s, GateRows{.x = x, .logits = logits, .y = o[5]});
              b.run(s, GateRowsBackward{.x = x, .logits = logits, .dy = o[7], .dlogits = o[6], .dx = o[7]});
            });
      }
  }
}

TEST_CASE("the gradients of biases of experts and of gates are derivatives") {
  Random random(107);
  Routing r = routing("ragged", 9, 4, 2, [](int64_t m, int64_t j) { return int32_t(j == 0 ? m % 2 : 3); });
  const Sorted sorted(r);
  const auto stream = reference().create_stream();
  constexpr int64_t kCols = 5;
  const Storage before = random.normal(DType::f32, 18, kCols), dy = random.normal(DType::f32, 18, kCols);
  Storage bias = random.normal(DType::f32, 4, kCols), weights = random.normal(DType::f32, 9, 2);
  Storage dbias(DType::f32, 4, kCols, 0), dweights(DType::f32, 9, 2, 0);
  dweights.fill(0);
  const auto loss = [&] {
    Storage x = before;
    reference().run(
        *stream,
        AddExpertBias{.x = x, .bias = bias, .offsets = sorted.at, .weights = weights, .slots = sorted.slot});
    return dot(x, dy);
  };
  reference().run(
      *stream, ExpertBiasBackward{
                   .dy = dy, .offsets = sorted.at, .weights = weights, .slots = sorted.slot, .dbias = dbias});
  reference().run(
      *stream, ExpertBiasWeights{
                   .dy = dy, .bias = bias, .offsets = sorted.at, .slots = sorted.slot, .dweights = dweights});
  check_derivative(loss, bias, dbias);
  check_derivative(loss, weights, dweights);

  Storage x = random.normal(DType::f32, 6, kCols), logits = random.normal(DType::f32, 6, 1);
  const Storage dout = random.normal(DType::f32, 6, kCols);
  Storage dlogits(DType::f32, 6, 1, 0), dx(DType::f32, 6, kCols, 0);
  const auto gated_loss = [&] {
    Storage y(DType::f32, 6, kCols, 0);
    reference().run(*stream, GateRows{.x = x, .logits = logits, .y = y});
    return dot(y, dout);
  };
  reference().run(*stream,
                  GateRowsBackward{.x = x, .logits = logits, .dy = dout, .dlogits = dlogits, .dx = dx});
  check_derivative(gated_loss, logits, dlogits);
  check_derivative(gated_loss, x, dx);
}

TEST_CASE("products of experts agree with the reference") {
  Random random(102);
  for (Routing r : routings()) {
    const Sorted sorted(r);
    const int64_t rows = int64_t(r.ids.size());
    for (DType dtype : kActivationTypes)
      for (auto [n, k] : {std::pair{1, 1}, {17, 24}, {64, 80}}) {
        INFO(r.name << " [" << n << ", " << k << "] " << name_of(dtype));
        const Storage x = random.normal(dtype, rows, k, 3), dy = random.normal(dtype, rows, n, 2),
                      w = random.normal(dtype, r.experts * n, k);
        Storage y(dtype, rows, n, 1), dx(dtype, rows, k, 4), dw(DType::f32, r.experts * n, k, 0);
        y.fill(kPoison), dx.fill(kPoison), dw.fill(kPoison);
        const Storage before = random.normal(DType::f32, r.experts * n, k);
        const double t = tolerance::of_op(dtype), f = tolerance::kOpF32;
        compare({y, dx, dw, before}, {t, t, f, f}, [&](Backend& b, Stream& s, auto& o) {
          const auto weight = packed(b, s, w);
          b.run(s, GroupedForward{.x = x, .offsets = sorted.at, .w = weight.get(), .y = o[0]});
          b.run(s, GroupedBackwardInput{.dy = dy, .offsets = sorted.at, .w = weight.get(), .dx = o[1]});
          b.run(s, GroupedBackwardWeight{.dy = dy, .x = x, .offsets = sorted.at, .dw = o[2]});
          b.run(s, GroupedBackwardWeight{
                       .dy = dy, .x = x, .offsets = sorted.at, .dw = o[3], .accumulate = true});
        });
      }
  }
}

TEST_CASE("routers choose as the reference does, of equal scores the first") {
  Random random(103);
  for (const Router& router : kRouters)
    for (auto [tokens, seq_len, experts, k] :
         {std::tuple{1, 1, 1, 1}, {6, 3, 4, 4}, {40, 20, 8, 2}, {130, 65, 128, 8}}) {
      INFO(tokens << " tokens, " << experts << " experts, " << k << " each, score " << int(router.score));
      Storage logits = random.normal(DType::f32, tokens, experts, 0, 2.0f);
      for (int e = 0; e < experts; ++e) logits.set(tokens - 1, e, float(e / 3 % 2));  // ties
      const Storage dweights = random.normal(DType::f32, tokens, k);
      Storage weights(DType::f32, tokens, k, 0), dlogits(DType::f32, tokens, experts, 0);
      weights.fill(kPoison), dlogits.fill(kPoison);
      const double f = tolerance::kOpF32;
      compare({integers(tokens, k), weights, integers(tokens / seq_len, experts), dlogits}, {0, f, 0, f},
              [&, seq = seq_len](Backend& b, Stream& s, auto& o) {
                b.run(s, Route{.router = router,
                               .seq_len = seq,
                               .logits = logits,
                               .ids = o[0],
                               .weights = o[1],
                               .counts = o[2]});
                b.run(s, RouteBackward{.router = router,
                                       .seq_len = seq,
                                       .aux = 0.3f,
                                       .z = 0.01f,
                                       .logits = logits,
                                       .ids = o[0],
                                       .counts = o[2],
                                       .dweights = dweights,
                                       .dlogits = o[3]});
              });
    }
  Storage logits(DType::f32, 1, 4, 0), weights(DType::f32, 1, 3, 0);
  for (int e = 0; e < 4; ++e) logits.set(0, e, e == 1 ? 0.0f : 1.0f);
  std::vector<int32_t> ids(3), counts(4);
  for (const Candidate& c : candidates()) {
    INFO(c.name);
    c.backend->run(*c.backend->create_stream(), Route{.router = {.renormalize = false},
                                                      .seq_len = 1,
                                                      .logits = logits,
                                                      .ids = ints(ids, 1, 3),
                                                      .weights = weights,
                                                      .counts = ints(counts, 1, 4)});
    CHECK(ids == std::vector<int32_t>{0, 2, 3});
    CHECK(counts == std::vector<int32_t>{1, 0, 1, 1});
    CHECK(weights.get(0, 0) == Approx(std::exp(1.0) / (3 * std::exp(1.0) + 1)));
  }
}

TEST_CASE("routers choose by biased scores, in the best groups, as the reference does") {
  struct Choice {
    int64_t experts, k;
    int groups, top_groups;
    bool biased;
  };
  Random random(105);
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid, RouterScore::sqrt_softplus})
    for (const auto& [experts, k, groups, top_groups, biased] : {Choice{1, 1, 1, 1, true},
                                                                 {8, 3, 1, 1, true},
                                                                 {8, 3, 4, 2, false},
                                                                 {6, 2, 6, 2, true},
                                                                 {128, 8, 8, 4, true},
                                                                 {128, 4, 64, 3, true},
                                                                 {96, 6, 48, 48, true}}) {
      INFO(experts << " experts, " << k << " each, " << top_groups << " of " << groups << " groups");
      const Router router{.score = score, .scale = 2.5f, .groups = groups, .top_groups = top_groups};
      const Storage logits = random.normal(DType::f32, 40, experts, 0, 2.0f),
                    bias = random.normal(DType::f32, 1, experts, 0, 0.3f);
      Storage weights(DType::f32, 40, k, 0), sums = random.normal(DType::f32, 1, experts);
      weights.fill(kPoison);
      for (int e = 0; e < experts; ++e) sums.set(0, e, float(e));
      Storage fresh = sums;
      fresh.fill(kPoison);
      compare({integers(40, k), weights, integers(4, experts), sums, fresh}, {0, tolerance::kOpF32, 0, 0, 0},
              [&, k_of = k](Backend& b, Stream& s, auto& o) {
                b.run(s, Route{.router = router,
                               .seq_len = 10,
                               .logits = logits,
                               .ids = o[0],
                               .weights = o[1],
                               .counts = o[2],
                               .bias = biased ? Matrix(bias) : Matrix()});
                b.run(s, AddCounts{.counts = o[2], .sums = o[3], .accumulate = true});
                b.run(s, AddCounts{.counts = o[2], .sums = o[4]});
                double all = 0;
                for (int64_t e = 0; e < o[4]->cols; ++e) all += double(o[4].get(0, e));
                CHECK(all == double(40 * k_of));
              });
    }
}

TEST_CASE("a bias keeps experts in use that a router would leave idle") {
  constexpr int64_t kTokens = 256, kExperts = 8, kChosen = 2;
  Random random(108);
  const auto counts_after = [&](Backend& b, float rate) {
    const auto stream = b.create_stream();
    Storage bias(DType::f32, 1, kExperts, 0), sums(DType::f32, 1, kExperts, 0),
        master(DType::f32, 1, kExperts, 0);
    Storage weights(DType::f32, kTokens, kChosen, 0);
    bias.fill(0), master.fill(0);
    std::vector<int32_t> ids(kTokens * kChosen), counts(kExperts);
    for (int step = 0; step < 300; ++step) {
      Storage logits = random.normal(DType::f32, kTokens, kExperts, 0, 0.5f);
      for (int64_t m = 0; m < kTokens; ++m)
        for (int64_t e = 0; e < kExperts; ++e) logits.set(m, e, logits.get(m, e) + float(e) - 4);
      b.run(*stream, Route{.router = {.score = RouterScore::sigmoid},
                           .seq_len = kTokens,
                           .logits = logits,
                           .ids = ints(ids, kTokens, kChosen),
                           .weights = weights,
                           .counts = ints(counts, 1, kExperts),
                           .bias = bias});
      b.run(*stream, AddCounts{.counts = ints(counts, 1, kExperts), .sums = sums});
      const UpdateBox box[] = {
          {.master = master.f32(), .grad = sums.f32(), .grad_stride = kExperts, .param = bias}};
      b.run(*stream, Balance{.boxes = box, .step = {rate, double(kTokens * kChosen) / kExperts}});
    }
    return counts;
  };
  for (const Candidate& c : candidates()) {
    INFO(c.name);
    const std::vector<int32_t> without = counts_after(*c.backend, 0), with = counts_after(*c.backend, 0.003f);
    CHECK(std::count(without.begin(), without.end(), 0) >= 4);
    CHECK(*std::max_element(without.begin(), without.end()) > 200);
    for (const int32_t count : with) CHECK((count > 28 && count < 116));  // 64 each would be even
  }
}

TEST_CASE("a router's bias decides the choice and not the weights, groups by their two best") {
  Storage logits(DType::f32, 1, 6, 0), bias(DType::f32, 1, 6, 0), weights(DType::f32, 1, 2, 0);
  std::vector<int32_t> ids(2), counts(6);
  const auto route = [&](Backend& b, Router router) {
    b.run(*b.create_stream(), Route{.router = router,
                                    .seq_len = 1,
                                    .logits = logits,
                                    .ids = ints(ids, 1, 2),
                                    .weights = weights,
                                    .counts = ints(counts, 1, 6),
                                    .bias = bias});
    return ids;
  };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (const Candidate& c : candidates()) {
    INFO(c.name);
    for (int e = 0; e < 6; ++e) logits.set(0, e, std::array{2.0f, -1.0f, 1.0f, 0.9f, 0.5f, 0.0f}[size_t(e)]);
    bias.fill(0);
    const Router plain{.score = RouterScore::sigmoid},
        grouped{.score = RouterScore::sigmoid, .groups = 3, .top_groups = 1};
    CHECK(route(*c.backend, plain) == std::vector<int32_t>{0, 2});
    CHECK(route(*c.backend, grouped) == std::vector<int32_t>{2, 3});  // 0 is in a group with the worst
    bias.set(0, 5, 0.6f);
    CHECK(route(*c.backend, plain) == std::vector<int32_t>{5, 0});
    CHECK(weights.get(0, 0) == Approx(sigmoid(0) / (sigmoid(0) + sigmoid(2))));
    CHECK(route(*c.backend, grouped) == std::vector<int32_t>{5, 4});
    bias.set(0, 5, -3);  // a group with less than nothing is still none that is left out
    Router two = grouped;
    two.top_groups = 2;
    CHECK(route(*c.backend, two) == std::vector<int32_t>{0, 2});
  }
}

TEST_CASE("scores of the root of a softplus are finite, and so are their gradients, of any logit") {
  constexpr float kLogits[] = {-1e4f, -800, -90, 0, 90, 1e4f};
  Storage logits(DType::f32, 1, 6, 0), weights(DType::f32, 1, 6, 0), dweights(DType::f32, 1, 6, 0),
      dlogits(DType::f32, 1, 6, 0);
  for (int e = 0; e < 6; ++e) logits.set(0, e, kLogits[e]), dweights.set(0, e, 1);
  std::vector<int32_t> ids(6), counts(6);
  const Router router{.score = RouterScore::sqrt_softplus, .renormalize = false};
  const auto check = [&](Backend& b) {
    const auto stream = b.create_stream();
    b.run(*stream, Route{.router = router,
                         .seq_len = 1,
                         .logits = logits,
                         .ids = ints(ids, 1, 6),
                         .weights = weights,
                         .counts = ints(counts, 1, 6)});
    b.run(*stream, RouteBackward{.router = router,
                                 .seq_len = 1,
                                 .logits = logits,
                                 .ids = ints(ids, 1, 6),
                                 .counts = ints(counts, 1, 6),
                                 .dweights = dweights,
                                 .dlogits = dlogits});
    for (int j = 0; j < 6; ++j) {  // in descending order
      const double l = double(kLogits[5 - j]);
      const double s = l > 40    ? std::sqrt(l)
                       : l < -40 ? std::exp(l / 2)
                                 : std::sqrt(std::log(1 + std::exp(l)));
      CHECK(weights.get(0, j) == Approx(float(s)));
      const double slope = s > 0 ? 1 / (1 + std::exp(-l)) / (2 * s) : 0;
      CHECK(dlogits.get(0, 5 - j) == Approx(float(l < -40 ? std::exp(l / 2) / 2 : slope)));
    }
  };
  check(reference());
  for (const Candidate& c : candidates()) {
    INFO(c.name);
    check(*c.backend);
  }
}

TEST_CASE("the gradient of a router is the derivative of its weights and losses") {
  constexpr int64_t kTokens = 6, kSequence = 3, kExperts = 4, kChosen = 2;
  constexpr float kAux = 0.2f, kZ = 0.05f;
  for (const Router& router : kRouters) {
    INFO("score " << int(router.score) << " renormalize " << router.renormalize);
    Random random(104);
    Storage logits(DType::f32, kTokens, kExperts, 0);
    for (int m = 0; m < kTokens; ++m)  // far enough apart for differences to change no choice
      for (int e = 0; e < kExperts; ++e) logits.set(m, e, 0.4f * float(e * (m % 4 + 1) % 5) - 0.5f);
    const Storage dweights = random.normal(DType::f32, kTokens, kChosen);
    Storage weights(DType::f32, kTokens, kChosen, 0), dlogits(DType::f32, kTokens, kExperts, 0);
    std::vector<int32_t> ids(kTokens * kChosen), counts(kTokens / kSequence * kExperts);
    const auto stream = reference().create_stream();
    const Route route{.router = router,
                      .seq_len = kSequence,
                      .logits = logits,
                      .ids = ints(ids, kTokens, kChosen),
                      .weights = weights,
                      .counts = ints(counts, kTokens / kSequence, kExperts)};
    const auto loss = [&] {
      reference().run(*stream, route);
      double sum = dot(weights, dweights);
      for (int m = 0; m < kTokens; ++m) {
        double softmax = 0, all = 0;
        for (int e = 0; e < kExperts; ++e) softmax += std::exp(logits.get(m, e));
        const auto p = [&](int e) {
          const double l = logits.get(m, e);
          if (router.score == RouterScore::sqrt_softplus) return std::sqrt(std::log(1 + std::exp(l)));
          return router.score == RouterScore::softmax ? std::exp(l) / softmax : 1 / (1 + std::exp(-l));
        };
        for (int e = 0; e < kExperts; ++e) all += p(e);
        for (int e = 0; e < kExperts; ++e)
          sum += kAux * kExperts / double(kChosen * kSequence) *
                 counts[size_t(m / kSequence * kExperts + e)] * p(e) / all;
        sum += kZ * std::log(softmax) * std::log(softmax);
      }
      return sum;
    };
    loss();
    reference().run(*stream, RouteBackward{.router = router,
                                           .seq_len = kSequence,
                                           .aux = kAux,
                                           .z = kZ,
                                           .logits = logits,
                                           .ids = route.ids,
                                           .counts = route.counts,
                                           .dweights = dweights,
                                           .dlogits = dlogits});
    check_derivative(loss, logits, dlogits);
  }
}

}  // namespace trainctl::kernels::test
