// Goal: ops find the weights of rows that are in the rows' own order, and experts may have no rows at all.
// Method: the same weights by slots and in order, to the same bits; every op of rows on none of them.
#include "support.h"

namespace trainctl::kernels::test {

namespace {

Matrix vector_of(std::vector<int32_t>& v) { return vector(v.data(), DType::i32, int64_t(v.size())); }

}  // namespace

TEST_CASE("without slots, the weights of rows are in the order of rows") {
  Random random(109);
  constexpr int64_t kTokens = 67, kChosen = 2, kRows = kTokens * kChosen, kExperts = 7, kCols = 17;
  // Experts 0, 2 and 4 have none.
  std::vector<int32_t> ids, offsets(kExperts + 1), slots(kRows), places(kRows);
  for (int m = 0; m < kTokens; ++m)
    for (const int expert : {m % 5 == 0 ? 5 : 1, m % 3 == 0 ? 6 : 3}) ids.push_back(expert);
  const Matrix at = vector_of(offsets), slot = vector_of(slots);
  reference().run(*reference().create_stream(),
                  SortByExpert{.ids = matrix(ids.data(), DType::i32, kTokens, kChosen),
                               .offsets = at,
                               .slots = slot,
                               .rows = vector_of(places)});
  const Storage of_tokens = random.normal(DType::f32, kTokens, kChosen),
                bias = random.normal(DType::f32, kExperts, kCols);
  Storage of_rows(DType::f32, kRows, 1, 0);
  for (int64_t i = 0; i < kRows; ++i) of_rows.set(i, 0, of_tokens.f32()[slots[size_t(i)]]);
  for (DType dtype : kActivationTypes) {
    const Storage x = random.normal(dtype, kRows, kCols, 3), dy = random.normal(dtype, kRows, kCols, 1);
    for (const Candidate& c : candidates()) {
      INFO(name_of(dtype) << " " << c.name);
      const auto stream = c.backend->create_stream();
      /// y, x with biases, dx, the biases' gradients, those of weights.
      const auto results = [&](const Matrix& weights, const Matrix& order, Storage dweights) {
        std::vector<Storage> o = {x, x, dy, bias, std::move(dweights)};
        c.backend->run(*stream, ScaleRows{.x = x, .weights = weights, .slots = order, .y = o[0]});
        c.backend->run(
            *stream,
            AddExpertBias{.x = o[1], .bias = bias, .offsets = at, .weights = weights, .slots = order});
        c.backend->run(
            *stream, ScaleRowsBackward{
                         .x = x, .weights = weights, .slots = order, .dy = dy, .dweights = o[4], .dx = o[2]});
        c.backend->run(
            *stream,
            ExpertBiasBackward{.dy = dy, .offsets = at, .weights = weights, .slots = order, .dbias = o[3]});
        c.backend->run(*stream, ExpertBiasWeights{
                                    .dy = dy, .bias = bias, .offsets = at, .slots = order, .dweights = o[4]});
        return o;
      };
      const std::vector<Storage> by_slots = results(of_tokens, slot, of_tokens),
                                 in_order = results(of_rows, {}, of_rows);
      for (size_t i = 0; i < 4; ++i) CHECK(in_order[i].content() == by_slots[i].content());
      for (int64_t i = 0; i < kRows; ++i) CHECK(in_order[4].get(i, 0) == by_slots[4].f32()[slots[size_t(i)]]);
    }
  }
}

TEST_CASE("experts without any rows") {
  std::vector<int32_t> zeros(4);
  const Matrix offsets = vector_of(zeros);
  Random random(110);
  const Storage room = random.normal(DType::f32, 1, 8), w = random.normal(DType::f32, 3 * 8, 8),
                bias = random.normal(DType::f32, 3, 8);
  Storage fresh(DType::f32, 3 * 8, 8, 0), dbias(DType::f32, 3, 8, 0);
  fresh.fill(kPoison), dbias.fill(kPoison);
  const Matrix none = Matrix(room).row_range(0, 0), no_weights = matrix(none.data, DType::f32, 0, 1);
  compare({room, fresh, w, dbias}, {0, 0, 0, 0}, [&](Backend& b, Stream& s, auto& o) {
    const auto weight = b.make_packed(w->rows, w->cols, w->dtype);
    b.run(s, Pack{.w = w, .packed = weight.get()});
    const Matrix out = Matrix(o[0]).row_range(0, 0);
    b.run(s, GatherRows{.x = room, .slots = offsets.columns(0, 0), .out = out});
    b.run(s, GroupedForward{.x = none, .offsets = offsets, .w = weight.get(), .y = out});
    b.run(s, GroupedBackwardInput{.dy = none, .offsets = offsets, .w = weight.get(), .dx = out});
    b.run(s, GroupedBackwardWeight{.dy = none, .x = none, .offsets = offsets, .dw = o[1]});
    b.run(s,
          GroupedBackwardWeight{.dy = none, .x = none, .offsets = offsets, .dw = o[2], .accumulate = true});
    b.run(s, ScaleRows{.x = none, .weights = no_weights, .y = out});
    b.run(s,
          ScaleRowsBackward{.x = none, .weights = no_weights, .dy = none, .dweights = no_weights, .dx = out});
    b.run(s, AddExpertBias{.x = out, .bias = bias, .offsets = offsets, .weights = no_weights});
    b.run(s, ExpertBiasBackward{.dy = none, .offsets = offsets, .weights = no_weights, .dbias = o[3]});
    b.run(s, ExpertBiasWeights{.dy = none, .bias = bias, .offsets = offsets, .dweights = no_weights});
    for (const float g : {o[1].get(5, 5), o[3].get(1, 1)}) CHECK(g == 0);
  });
}

}  // namespace trainctl::kernels::test
