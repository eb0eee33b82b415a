// The scores of a token's experts and their order: a warp for each token, in double.
#pragma once
#include <climits>

#include "kernels/cuda/elements.cuh"
#include "kernels/moe_ops.h"

namespace trainctl::kernels::cuda {

constexpr int kRouterWarps = 4;

struct Scores {
  const float* logits;
  int experts, lane;
  RouterScore score;
  double top, sum, lse;

  __device__ Scores(const float* row, int n, RouterScore score_, int lane_)
      : logits(row), experts(n), lane(lane_), score(score_) {
    float most = -INFINITY;
    for (int e = lane; e < experts; e += kWarpSize) most = fmaxf(most, logits[e]);
    top = double(warp_max(most));
    double part = 0;
    for (int e = lane; e < experts; e += kWarpSize) part += exp(double(logits[e]) - top);
    sum = warp_sum(part);
    lse = top + log(sum);
  }
  __device__ double softmax(int e) const { return exp(double(logits[e]) - top) / sum; }
  __device__ double operator()(int e) const {
    const double logit = double(logits[e]);
    if (score == RouterScore::sigmoid) return 1 / (1 + exp(-logit));
    if (score == RouterScore::sqrt_softplus) return sqrt(fmax(logit, 0.0) + log1p(exp(-fabs(logit))));
    return softmax(e);
  }
  /// The gradient of a logit through its score s. through: sum s' p.
  __device__ double backward(int e, double ds, double s, double through) const {
    if (score == RouterScore::sigmoid) return ds * s * (1 - s);
    if (score == RouterScore::sqrt_softplus)
      return s > 0 ? ds / ((1 + exp(-double(logits[e]))) * 2 * s) : 0.0;
    return s * (ds - through);
  }
};

/// By what experts are chosen: the logits, or with a bias or groups s + bias, where groups that are left out
/// have nothing.
struct Values {
  const Scores& s;
  const float* bias;
  int groups, per_group;
  uint64_t kept;

  __device__ Values(const Scores& scores, const float* bias_, int groups_, int top_groups)
      : s(scores), bias(bias_), groups(groups_), per_group(scores.experts / groups_), kept(~uint64_t(0)) {
    if (groups > 1) kept = best_groups(top_groups);
  }
  __device__ double biased(int e) const { return bias ? s(e) + double(bias[e]) : s(e); }
  __device__ double operator()(int e) const {
    if (!bias && groups == 1) return double(s.logits[e]);
    return groups > 1 && (kept >> (e / per_group) & 1) == 0 ? -INFINITY : biased(e);
  }

 private:
  /// The sum of a group's two largest values.
  __device__ double value_of_group(int group) const {
    double first = -INFINITY, second = -INFINITY;
    for (int e = group * per_group; group < groups && e < (group + 1) * per_group; ++e) {
      const double value = biased(e);
      if (value > first)
        second = first, first = value;
      else if (value > second)
        second = value;
    }
    return per_group > 1 ? first + second : first;
  }
  /// A bit for each group; lane l has groups l and l + kWarpSize.
  __device__ uint64_t best_groups(int top_groups) const {
    const double own[2] = {value_of_group(s.lane), value_of_group(s.lane + kWarpSize)};
    uint64_t bits = 0;
    for (int half = 0; half < 2; ++half) {
      const int mine = s.lane + half * kWarpSize;
      int better = 0;
      for (int g = 0; g < groups; ++g) {
        const double other = __shfl_sync(kFullWarp, g < kWarpSize ? own[0] : own[1], g % kWarpSize);
        better += other > own[half] || (other == own[half] && g < mine);
      }
      bits |= uint64_t(__ballot_sync(kFullWarp, mine < groups && better < top_groups)) << (half * kWarpSize);
    }
    return bits;
  }
};
static_assert(kMostRouterGroups == 2 * kWarpSize);

/// The best expert that comes behind (value, index) in descending order, of equal values the lower index
/// first.
__device__ inline int next_best(const Values& values, double value, int index) {
  double best = -INFINITY;
  int at = INT_MAX;
  for (int e = values.s.lane; e < values.s.experts; e += kWarpSize) {
    const double v = values(e);
    const bool behind = index < 0 || v < value || (v == value && e > index);
    if (behind && (at == INT_MAX || v > best)) best = v, at = e;
  }
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const double other = __shfl_xor_sync(kFullWarp, best, offset);
    const int other_at = __shfl_xor_sync(kFullWarp, at, offset);
    if (other_at != INT_MAX && (at == INT_MAX || other > best || (other == best && other_at < at)))
      best = other, at = other_at;
  }
  return at == INT_MAX ? 0 : at;  // none is left where logits are NaN
}

}  // namespace trainctl::kernels::cuda
