// The ops of a mixture of experts. ops.h has the letters and the rules of every op; here also: E experts, k
// of them for each token, R = M k rows, one for each token and each of its experts. Slot m k + j is the j-th
// expert of token m; row r is a place in the order of experts, in which the rows of one expert lie together,
// in order of slots. How many rows an expert has is known on the device alone; an expert may have none.
#pragma once
#include "kernels/op_arguments.h"

namespace trainctl::kernels {

enum class RouterScore {
  softmax,       ///< s = softmax(logits) over all experts
  sigmoid,       ///< s = sigmoid(logits) of each expert; Source: DeepSeek-V3, arXiv:2412.19437
  sqrt_softplus  ///< s = sqrt(log(1 + exp(logits))) of each expert; Source: DeepSeek-V4, arXiv:2606.19348
};

/// How logits become experts and weights. A token goes to the k experts with the largest values, of equal
/// ones to the lower index, in descending order. Values are the logits; with a bias or groups they are
/// s + bias, in double. Of groups of neighbouring experts it meets those with the largest sums of their two
/// largest values, of equal ones the lower index. Its weights are w_j = scale s_j, or
/// scale s_j / (sum of the chosen s) if renormalize. Source of groups and bias: DeepSeek-V3, section 2.1.2.
struct Router {
  RouterScore score = RouterScore::softmax;
  bool renormalize = true;
  float scale = 1;
  int groups = 1, top_groups = 1;  ///< at most kMostRouterGroups
  bool operator==(const Router&) const = default;
};

constexpr int kMostRouterGroups = 64;

/// The experts of each token. bias f32 [1, E], or empty: 0; logits f32 [M, E] -> ids i32 [M, k], weights f32
/// [M, k], counts i32 [M / T, E]: slots of each sequence by expert
struct Route {
  static constexpr const char* kName = "route";
  Router router;
  int64_t seq_len = 0;
  Matrix logits, ids, weights, counts;
  Matrix bias = {};
  int64_t top_k() const { return ids.cols; }
  OpShape cost_shape() const { return elements(kName, logits); }
  double bytes() const { return bytes_of({logits, ids, weights, counts, bias}); }
  void check() const;
  void arguments(auto&& each) { each(logits), each(ids), each(weights), each(counts), each(bias); }
};

/// sums[e] (+)= sum over b of counts[b, e]; exact below 2^24.   counts i32 [B, E] of Route, sums f32 [1, E]
struct AddCounts {
  static constexpr const char* kName = "add_counts";
  Matrix counts, sums;
  bool accumulate = false;
  OpShape cost_shape() const { return elements(kName, counts); }
  double bytes() const { return bytes_of({counts, sums}); }
  void check() const;
  void arguments(auto&& each) { each(counts), each(sums); }
};

/// Bins of the margins of an expert.
constexpr int64_t kMarginBins = 1000;

/// Counts the bias with which each expert e would come level with the best of those that a token leaves:
///   margin[m, e] = (the (k + 1)-th largest of the token's s + bias) - s_e
/// A margin lies between low = (the least bias) - 1 and high = (the largest bias) + 1, because scores lie
/// between 0 and 1: no sqrt_softplus, and no groups. bin = floor((margin - low) / (high - low) *
/// kMarginBins), kMarginBins - 1 at most.
///   sums[e, bin] += 1 of each token that has experts, in integers, so in any order
///   range = the least and the largest bias
/// The fraction k / E of a column's margins is its expert's next bias. Source: quantile balancing, Kimi K3's
/// report, section 2.3.3 and appendix D; first https://kexue.fm/archives/11619.
/// logits f32 [M, E], bias f32 [1, E], ids i32 [M, k] of Route -> sums i32 [E, kMarginBins], range f32 [1, 2]
struct CountMargins {
  static constexpr const char* kName = "count_margins";
  Router router;
  Matrix logits, bias, ids, sums, range;
  OpShape cost_shape() const { return elements(kName, logits); }
  double bytes() const { return 2 * bytes_of({logits}) + bytes_of({bias, ids, range}); }
  void check() const;
  void arguments(auto&& each) { each(logits), each(bias), each(ids), each(sums), each(range); }
};

/// The bin of a margin, of which `bins_per_unit` = kMarginBins / (high - low).
constexpr int64_t margin_bin(double margin, double low, double bins_per_unit) {
  const double at = (margin - low) * bins_per_unit;
  return !(at >= 1) ? 0 : at >= double(kMarginBins) ? kMarginBins - 1 : int64_t(at);
}

/// The gradient of Route's logits, and that of two losses of the router itself:
///   aux * E / (k T) * sum over sequences and experts e of counts[b, e] * sum over the sequence's tokens of p_e
///   z * sum over tokens of lse^2
/// where p is s, of scores of each expert s / (sum of s); lse is that of the token's logits, counts are
/// constants, of what was chosen, before a capacity drops any (as in both sources, and in Megatron-LM). The
/// first one is aux * T * (E / (k T^2)) * sum_e counts_e sum_t p_te of each sequence: of its tokens each has
/// a part, so that it is the same however sequences are grouped. Source: arXiv:2101.03961, section 2.2; of
/// sequences arXiv:2412.19437.
/// dlogits [M, E]; with s' = dL/ds: p_e (s'_e - sum s'_i p_i), of sigmoids s'_e s_e (1 - s_e), of
/// sqrt_softplus s'_e sigmoid(logits) / (2 s_e), 0 where s_e is
struct RouteBackward {
  static constexpr const char* kName = "route_backward";
  Router router;
  int64_t seq_len = 0;
  float aux = 0, z = 0;
  Matrix logits, ids, counts;  ///< of Route
  Matrix dweights, dlogits;    ///< f32 [M, k], f32 [M, E]
  OpShape cost_shape() const { return elements(kName, logits); }
  double bytes() const { return bytes_of({logits, ids, counts, dweights, dlogits}); }
  /// What one slot of a sequence adds to the gradient of each of its tokens' p.
  double aux_of_slot() const {
    return aux == 0 ? 0 : double(aux) * double(logits.cols) / (double(ids.cols) * double(seq_len));
  }
  void check() const;
  void arguments(auto&& each) { each(logits), each(ids), each(counts), each(dweights), each(dlogits); }
};

/// The order of rows by expert. ids i32 [M, k] -> offsets i32 [1, E + 1]: expert e has the rows from
/// offsets[e] to offsets[e + 1]; slots i32 [1, R]: the slot of each row; rows i32 [1, M k]: the row of each
/// slot With a capacity an expert has at most so many rows of each group of neighbouring tokens: of its slots
/// there those with the largest weights, of equal ones the lower slots, or without weights its first slots. R
/// is then at least min(M k, E groups capacity); the row of a slot without one is -1, and so is the slot of
/// the rows behind those of all experts.
struct SortByExpert {
  static constexpr const char* kName = "sort_by_expert";
  Matrix ids, offsets, slots, rows;
  int64_t capacity = 0;  ///< 0: without
  int64_t groups = 1;    ///< equal parts of the tokens
  Matrix weights = {};   ///< f32 [M, k] of Route, or empty
  int64_t experts() const { return offsets.cols - 1; }
  OpShape cost_shape() const { return elements(kName, ids); }
  double bytes() const { return bytes_of({ids, offsets, slots, rows, weights}); }
  void check() const;
  void arguments(auto&& each) { each(ids), each(offsets), each(slots), each(rows), each(weights); }
};

/// The tokens that go to each of D ranks that share the experts in order, each once, however many of a rank's
/// experts it has. rows i32 [1, M k] and offsets i32 [1, E + 1] of SortByExpert -> firsts i32 [1, D + 1]: to
/// rank d go the tokens from firsts[d] to firsts[d + 1]; tokens i32 [1, S], S = M min(k, D) or R if it is
/// less: in ascending order for each rank, behind all of them -1; places i32 [1, R]: of each row of an
/// expert, where its token is among those of the expert's rank; behind the rows of all experts -1
struct TokensOfRanks {
  static constexpr const char* kName = "tokens_of_ranks";
  Matrix rows, offsets, firsts, tokens, places;
  int64_t top_k = 1;
  int64_t ranks() const { return firsts.cols - 1; }
  int64_t experts() const { return offsets.cols - 1; }
  OpShape cost_shape() const { return elements(kName, rows); }
  double bytes() const { return bytes_of({rows, offsets, firsts, tokens, places}); }
  void check() const;
  void arguments(auto&& each) { each(rows), each(offsets), each(firsts), each(tokens), each(places); }
};

/// out[r] = x[slots[r] / top_k], or 0 where the slot is negative or x has no such row, so that nothing that a
/// lost peer leaves in `slots` leads out of x.   x [M, C], slots i32 [1, R], out [R, C]
struct GatherRows {
  static constexpr const char* kName = "gather_rows";
  Matrix x, slots, out;
  int64_t top_k = 1;
  OpShape cost_shape() const { return elements(kName, out); }
  double bytes() const { return bytes_of({slots, out, out}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(slots), each(out); }
};

/// out[m] = sum over j, in order, of x[rows[m k + j]], of those that are not -1, in f32, rounded once.
/// x [R, C], rows i32 [1, M k], out [M, C]
struct CombineRows {
  static constexpr const char* kName = "combine_rows";
  Matrix x, rows, out;
  int64_t top_k() const { return out.rows > 0 ? rows.cols / out.rows : 1; }
  OpShape cost_shape() const { return elements(kName, x); }
  double bytes() const { return bytes_of({x, rows, out}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(rows), each(out); }
};

/// y[r] = weights[slots[r]] * x[r], or 0 where the slot is -1; here and below slots[r] = r without slots.
///   x, y [R, F]; weights f32 [M, k]
struct ScaleRows {
  static constexpr const char* kName = "scale_rows";
  Matrix x, weights, slots, y;
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, weights, slots, y}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(weights), each(slots), each(y); }
};

/// dweights[slots[r]] = sum_c x[r, c] * dy[r, c]; dx[r] = weights[slots[r]] * dy[r], or 0 where the slot is
/// -1. dx may be dy.
struct ScaleRowsBackward {
  static constexpr const char* kName = "scale_rows_backward";
  Matrix x, weights, slots, dy, dweights, dx;
  OpShape cost_shape() const { return elements(kName, dy); }
  double bytes() const { return bytes_of({x, weights, slots, dy, dweights, dx}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(weights), each(slots), each(dy), each(dweights), each(dx); }
};

/// y[m] = sigmoid(logits[m]) * x[m].   x, y [M, F]; logits f32 [M, 1]
struct GateRows {
  static constexpr const char* kName = "gate_rows";
  Matrix x, logits, y;
  OpShape cost_shape() const { return elements(kName, y); }
  double bytes() const { return bytes_of({x, logits, y}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(logits), each(y); }
};

/// dlogits[m] = s (1 - s) sum_c x[m, c] * dy[m, c] with s = sigmoid(logits[m]); dx[m] = s * dy[m]. dx may be
/// dy.
struct GateRowsBackward {
  static constexpr const char* kName = "gate_rows_backward";
  Matrix x, logits, dy, dlogits, dx;
  OpShape cost_shape() const { return elements(kName, dy); }
  double bytes() const { return bytes_of({x, logits, dy, dlogits, dx}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(logits), each(dy), each(dlogits), each(dx); }
};

/// x[r] = x[r] + weights[slots[r]] * bias[e], or without weights and slots x[r] + bias[e], of the rows of
/// each
/// expert e, in f32, rounded once.   x [R, N]; bias f32 [E, N]; offsets and slots of SortByExpert
struct AddExpertBias {
  static constexpr const char* kName = "add_expert_bias";
  Matrix x, bias, offsets;
  Matrix weights = {}, slots = {};
  OpShape cost_shape() const { return elements(kName, x); }
  double bytes() const { return bytes_of({x, x, bias, weights, slots}); }
  void check() const;
  void arguments(auto&& each) { each(x), each(bias), each(offsets), each(weights), each(slots); }
};

/// The gradient of its bias: dbias[e] (+)= sum over the rows r of expert e, in order, of weights[slots[r]] *
/// dy[r],
/// or of dy[r]; 0 of none.   dbias f32 [E, N]
struct ExpertBiasBackward {
  static constexpr const char* kName = "expert_bias_backward";
  Matrix dy, offsets;
  Matrix weights = {}, slots = {};
  Matrix dbias;
  bool accumulate = false;
  OpShape cost_shape() const { return elements(kName, dy); }
  double bytes() const { return bytes_of({dy, weights, slots, dbias}); }
  void check() const;
  void arguments(auto&& each) { each(dy), each(offsets), each(weights), each(slots), each(dbias); }
};

/// The gradient of its weights: dweights[slots[r]] += sum_c dy[r, c] * bias[e, c] of the rows r of each
/// expert e.
struct ExpertBiasWeights {
  static constexpr const char* kName = "expert_bias_weights";
  Matrix dy, bias, offsets, slots, dweights;
  OpShape cost_shape() const { return elements(kName, dy); }
  double bytes() const { return bytes_of({dy, bias, slots, dweights}); }
  void check() const;
  void arguments(auto&& each) { each(dy), each(bias), each(offsets), each(slots), each(dweights); }
};

/// y[r] = x[r] W_e^T of the rows of each expert e. W: the experts' [N, K] weights as one [E N, K].
/// x [R, K], y [R, N]; offsets of SortByExpert
struct GroupedForward {
  static constexpr const char* kName = "grouped_forward";
  Matrix x, offsets;
  const PackedWeight* w = nullptr;
  Matrix y;
  int64_t experts() const { return offsets.cols - 1; }
  OpShape cost_shape() const { return {kName, x.rows, y.cols, x.cols}; }
  double bytes() const { return bytes_with(*w, {x, offsets, y}); }
  double flops() const { return 2 * cost_shape().volume(); }
  void check() const;
  void arguments(auto&& each) { each(x), each(offsets), each(w), each(y); }
};

/// dx[r] = dy[r] W_e.   dy [R, N], dx [R, K]
struct GroupedBackwardInput {
  static constexpr const char* kName = "grouped_backward_input";
  Matrix dy, offsets;
  const PackedWeight* w = nullptr;
  Matrix dx;
  int64_t experts() const { return offsets.cols - 1; }
  OpShape cost_shape() const { return {kName, dy.rows, dx.cols, dy.cols}; }
  double bytes() const { return bytes_with(*w, {dy, offsets, dx}); }
  double flops() const { return 2 * cost_shape().volume(); }
  void check() const;
  void arguments(auto&& each) { each(dy), each(offsets), each(w), each(dx); }
};

/// dW_e (+)= dy^T x of the rows of each expert; 0 of none.   dw f32 [E N, K]
struct GroupedBackwardWeight {
  static constexpr const char* kName = "grouped_backward_weight";
  Matrix dy, x, offsets, dw;
  bool accumulate = false;
  int64_t experts() const { return offsets.cols - 1; }
  OpShape cost_shape() const { return {kName, dy.cols, x.cols, dy.rows}; }
  double bytes() const { return bytes_of({dy, x, offsets, dw}); }
  double flops() const { return 2 * cost_shape().volume(); }
  void check() const;
  void arguments(auto&& each) { each(dy), each(x), each(offsets), each(dw); }
};

}  // namespace trainctl::kernels
