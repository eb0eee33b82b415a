#include "kernels/moe_ops.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl::kernels {
namespace {

void check_dtype(const Matrix& m, int64_t rows, int64_t cols, DType dtype) {
  ENSURE(m && m.rows == rows && m.cols == cols && m.dtype == dtype && m.contiguous(),
         "[{}, {}] {} instead of {} [{}, {}] without gaps", m.rows, m.cols, name_of(m.dtype), name_of(dtype),
         rows, cols);
}

void check_router(const Matrix& logits, const Matrix& ids, const Matrix& counts, int64_t seq_len) {
  ENSURE(ids.cols >= 1 && ids.cols <= logits.cols, "{} of {} experts for a token", ids.cols, logits.cols);
  ENSURE(seq_len > 0 && logits.rows % seq_len == 0, "{} tokens in sequences of {}", logits.rows, seq_len);
  check_dtype(logits, logits.rows, logits.cols, DType::f32);
  check_dtype(ids, logits.rows, ids.cols, DType::i32);
  check_dtype(counts, logits.rows / seq_len, logits.cols, DType::i32);
}

/// The slots of rows, of which there may be fewer than slots.
void check_slots(const Matrix& slots, int64_t rows, const Matrix& weights) {
  check_dtype(slots, 1, rows, DType::i32);
  check_dtype(weights, weights.rows, weights.cols, DType::f32);
  ENSURE(rows <= weights.count(), "{} weights of {} rows", weights.count(), rows);
}

/// A weight of each row, by slots or in the order of rows.
void check_weights(const Matrix& weights, const Matrix& slots, int64_t rows) {
  if (slots) return check_slots(slots, rows, weights);
  check_dtype(weights, weights.rows, weights.cols, DType::f32);
  ENSURE(weights.count() == rows, "{} weights of {} rows", weights.count(), rows);
}

void check_grouped(const Matrix& offsets, const PackedWeight& w, const Matrix& left, const Matrix& out,
                   int64_t inner, int64_t columns) {
  ENSURE(offsets.cols > 1 && w.n % (offsets.cols - 1) == 0, "a weight of {} rows for {} experts", w.n,
         offsets.cols - 1);
  check_dtype(offsets, 1, offsets.cols, DType::i32);
  check_product(left, inner, out, columns, w.dtype);
}

void check_expert_bias(const Matrix& rows, const Matrix& bias, const Matrix& offsets, const Matrix& weights,
                       const Matrix& slots) {
  ENSURE(is_activation(rows.dtype) && offsets.cols > 1 && (weights || !slots));
  check_dtype(offsets, 1, offsets.cols, DType::i32);
  check_dtype(bias, offsets.cols - 1, rows.cols, DType::f32);
  if (!weights) return;
  check_weights(weights, slots, rows.rows);
}

}  // namespace

void Route::check() const {
  check_router(logits, ids, counts, seq_len);
  check_dtype(weights, ids.rows, ids.cols, DType::f32);
  if (bias) check_dtype(bias, 1, logits.cols, DType::f32);
  const int groups = router.groups, kept = router.top_groups;
  ENSURE(groups >= 1 && groups <= kMostRouterGroups && logits.cols % groups == 0 && kept >= 1 &&
             kept <= groups && ids.cols <= logits.cols / groups * kept,
         "{} of {} experts, in {} of {} groups", ids.cols, logits.cols, kept, groups);
}

void AddCounts::check() const {
  check_dtype(counts, counts.rows, counts.cols, DType::i32);
  check_dtype(sums, 1, counts.cols, DType::f32);
}

void CountMargins::check() const {
  check_dtype(logits, logits.rows, logits.cols, DType::f32);
  check_dtype(bias, 1, logits.cols, DType::f32);
  check_dtype(ids, logits.rows, ids.cols, DType::i32);
  check_dtype(sums, logits.cols, kMarginBins, DType::i32);
  check_dtype(range, 1, 2, DType::f32);
  ENSURE(router.score != RouterScore::sqrt_softplus && router.groups == 1 && ids.cols < logits.cols,
         "margins of {} of {} experts, in {} groups", ids.cols, logits.cols, router.groups);
}

void RouteBackward::check() const {
  check_router(logits, ids, counts, seq_len);
  check_dtype(dweights, ids.rows, ids.cols, DType::f32);
  check_dtype(dlogits, logits.rows, logits.cols, DType::f32);
}

void SortByExpert::check() const {
  check_dtype(ids, ids.rows, ids.cols, DType::i32);
  ENSURE(offsets.cols > 1, "offsets of {} experts", offsets.cols - 1);
  check_dtype(offsets, 1, offsets.cols, DType::i32);
  ENSURE(capacity >= 0, "a capacity of {}", capacity);
  const int64_t most = capacity > 0 ? std::min(ids.count(), experts() * groups * capacity) : ids.count();
  ENSURE(slots.cols >= most && slots.cols <= ids.count(), "{} rows of {} to {}", slots.cols, most,
         ids.count());
  ENSURE(groups >= 1 && ids.rows % groups == 0, "{} tokens in {} groups", ids.rows, groups);
  check_dtype(slots, 1, slots.cols, DType::i32);
  check_dtype(rows, 1, ids.count(), DType::i32);
  if (weights) check_dtype(weights, ids.rows, ids.cols, DType::f32);
}

void TokensOfRanks::check() const {
  check_dtype(rows, 1, rows.cols, DType::i32);
  check_dtype(offsets, 1, offsets.cols, DType::i32);
  check_dtype(firsts, 1, firsts.cols, DType::i32);
  check_dtype(places, 1, places.cols, DType::i32);
  ENSURE(ranks() >= 1 && experts() >= 1 && experts() % ranks() == 0, "{} experts on {} ranks", experts(),
         ranks());
  ENSURE(top_k >= 1 && rows.cols % top_k == 0 && places.cols <= rows.cols, "{} rows of {} slots, {} a token",
         places.cols, rows.cols, top_k);
  check_dtype(tokens, 1, std::min(rows.cols / top_k * std::min(top_k, ranks()), places.cols), DType::i32);
}

void GatherRows::check() const {
  ENSURE(x.cols == out.cols && x.dtype == out.dtype && is_activation(x.dtype) && top_k >= 1);
  check_dtype(slots, 1, out.rows, DType::i32);
}

void CombineRows::check() const {
  ENSURE(x.cols == out.cols && x.dtype == out.dtype && is_activation(x.dtype));
  check_dtype(rows, 1, rows.cols, DType::i32);
  ENSURE(out.rows == 0 || rows.cols % out.rows == 0, "{} rows of {} tokens", rows.cols, out.rows);
}

void ScaleRows::check() const {
  check_same({x, y});
  check_weights(weights, slots, x.rows);
}

void ScaleRowsBackward::check() const {
  ScaleRows{x, weights, slots, dy}.check();
  check_same({dy, dx});
  check_dtype(dweights, weights.rows, weights.cols, DType::f32);
}

void GateRows::check() const {
  check_same({x, y});
  check_dtype(logits, x.rows, 1, DType::f32);
}
void GateRowsBackward::check() const {
  GateRows{x, logits, dy}.check();
  check_same({dy, dx});
  check_dtype(dlogits, x.rows, 1, DType::f32);
}

void AddExpertBias::check() const { check_expert_bias(x, bias, offsets, weights, slots); }
void ExpertBiasBackward::check() const { check_expert_bias(dy, dbias, offsets, weights, slots); }
void ExpertBiasWeights::check() const { check_expert_bias(dy, bias, offsets, dweights, slots); }

void GroupedForward::check() const { check_grouped(offsets, *w, x, y, w->k, w->n / experts()); }
void GroupedBackwardInput::check() const { check_grouped(offsets, *w, dy, dx, w->n / experts(), w->k); }

void GroupedBackwardWeight::check() const {
  check_dtype(offsets, 1, offsets.cols, DType::i32);
  ENSURE(dy.rows == x.rows && dw.rows == experts() * dy.cols && dw.cols == x.cols,
         "dy [{}, {}], x [{}, {}], dw [{}, {}] of {} experts", dy.rows, dy.cols, x.rows, x.cols, dw.rows,
         dw.cols, experts());
  ENSURE(dw.dtype == DType::f32 && dy.dtype == x.dtype && is_activation(x.dtype));
}

}  // namespace trainctl::kernels
