// What quantile balancing counts of a router.
#include "kernels/cuda/ops.h"
#include "kernels/cuda/router.cuh"

namespace trainctl::kernels::cuda {

namespace {

/// sums[e, bin] of each expert, by integer atomics: their order does not matter.
__global__ void __launch_bounds__(kRouterWarps* kWarpSize)
    count_margins_kernel(int64_t tokens, int experts, int k, RouterScore score, const float* logits,
                         const float* bias, const int32_t* ids, int32_t* sums, float* range) {
  const int64_t m = int64_t(blockIdx.x) * kRouterWarps + threadIdx.x / kWarpSize;
  if (m >= tokens) return;
  const int lane = int(threadIdx.x) % kWarpSize;
  const Scores s(logits + m * experts, experts, score, lane);
  const bool has_experts = ids[m * k] >= 0;
  double cutoff = 0;
  if (has_experts) {
    const Values values(s, bias, 1, 1);
    int last = -1;
    for (int j = 0; j <= k; ++j) last = next_best(values, last < 0 ? 0.0 : values(last), last);
    cutoff = values(last);
  }
  // Only now, so that fewer values live through the search.
  float least = INFINITY, most = -INFINITY;
  for (int e = lane; e < experts; e += kWarpSize) least = fminf(least, bias[e]), most = fmaxf(most, bias[e]);
  least = -warp_max(-least), most = warp_max(most);
  if (m == 0 && lane == 0) range[0] = least, range[1] = most;
  if (!has_experts) return;
  const double low = double(least) - 1, scale = double(kMarginBins) / (double(most) + 1 - low);
  for (int e = lane; e < experts; e += kWarpSize)
    atomicAdd(sums + e * kMarginBins + margin_bin(cutoff - s(e), low, scale), 1);
}

}  // namespace

void enqueue(const Queue& queue, const CountMargins& op) {
  launch(queue, CountMargins::kName, count_margins_kernel, unsigned(div_up(op.logits.rows, kRouterWarps)),
         kRouterWarps * kWarpSize, 0, op.logits.rows, int(op.logits.cols), int(op.ids.cols), op.router.score,
         op.logits.as<float>(), op.bias.as<float>(), op.ids.as<int32_t>(), op.sums.as<int32_t>(),
         op.range.as<float>());
}

}  // namespace trainctl::kernels::cuda
