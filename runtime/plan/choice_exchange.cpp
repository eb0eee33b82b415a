// The bound of what the exchange of gradients and weights over the data axis adds to a step (ChoiceCosts).
#include <algorithm>
#include <cmath>

#include "runtime/base/units.h"
#include "runtime/plan/choice_costs.h"
#include "runtime/predict/collective_time.h"

namespace trainctl {

/// The exchange of `sent` elements over the data axis, so many bytes for each, in two calls for each bucket:
/// where buckets are not known, in as few as there can be, at the rate and with the latency of the faster
/// way. As in the prediction, ranks with the same experts are further apart.
double ChoiceCosts::exchange_bound(const MeshChoice& c, const Parameters& sent, double bytes_of_element,
                                   const std::vector<BucketCounts>& buckets) {
  const int sharing = c.data * c.context, on_node = ranks_on_node(c);
  const int of_expert = expert_lanes(job_.parallelism, c);
  const predict::GroupPlace place = predict::place_of_group(cluster_, sharing, c.tensor, on_node),
                            apart = predict::place_of_group(cluster_, sharing / of_expert,
                                                            c.tensor * of_expert, on_node);
  const double dense = bytes_of_element * sent.dense, of_experts = bytes_of_element * sent.of_experts;
  if (buckets.empty()) {
    const double calls = 2 * (sent.dense + sent.of_experts) / (job_.parallelism.bucket_mib * kMebibyte / 4);
    const predict::LinkSpeed& link = place.together < place.ranks ? cluster_.fabric : cluster_.node;
    return calls * link.latency_s + dense / predict::group_bytes_per_s(cluster_, place) +
           of_experts / predict::group_bytes_per_s(cluster_, apart);
  }
  double least = INFINITY;
  for (const BucketCounts& of : buckets) {
    const double all = of.halving + of.direct;
    const double direct = job_.parallelism.reduction == GradientSums::exact && all > 0 ? of.direct / all : 0;
    const auto exchange = [&](const predict::GroupPlace& among, double calls, double bytes) {
      return (1 - direct) * predict::collective_seconds(cluster_, among, calls, bytes) +
             direct * predict::all_to_all_seconds(cluster_, among, calls, bytes);
    };
    least = std::min(least, exchange(place, 2 * all, dense) + exchange(apart, 0, of_experts));
  }
  return least;
}

/// As the prediction's, for the stage whose layers take least.
double ChoiceCosts::data_bound(const MeshChoice& c, const JobSpec* job, double micro_batches, double passes_s,
                               const std::vector<BucketCounts>& buckets) {
  const double sharing = double(c.data) * c.context, share_experts = expert_lanes(job_.parallelism, c),
               of_expert = sharing / share_experts;
  if (sharing == 1) return 0;
  const double wire = double(size_of(job_.parallelism.reduction_dtype)),
               gathered = double(size_of(job_.compute));
  const bool each_lane = c.zero >= 2 || std::max<int64_t>(job_.parallelism.context_blocks, c.context) > 1;
  const double times = job && each_lane ? parallel::times_of_lanes(int(job->parallelism.lanes), c.data) : 1;
  const parallel::VirtualStages order = parallel::virtual_stages_of(c.schedule, c.pipeline, c.virtual_stages);
  const std::vector<int64_t>& layers = layers_of(c);
  double forward = 0, backward = 0, parts = 2;
  for (int local = 0; local < order.each; ++local) {
    const size_t v = size_t(order.global_of(0, local));
    forward += stages_[v].forward;
    backward += stages_[v].backward_input + stages_[v].backward_weight;
    parts += double(layers[v]);
  }
  double gathers = c.zero > 0 ? 1 : 0;
  if (c.zero >= 3 && job_.parallelism.reshard_after_forward) {
    // Two layers stay for the next pass; others are gathered forward and backward.
    const size_t ends = layers.size() > 2 ? 1 : 0;
    const double fewest = double(*std::min_element(layers.begin() + ends, layers.end() - ends));
    if (fewest > 2) gathers = std::max(1.0, 2 * micro_batches * (fewest - 2) / fewest);
  }
  double all = INFINITY;
  for (int stage = 0; stage < c.pipeline; ++stage) {
    const Parameters p = parameters_of(c, stage, false);
    const Parameters sent{p.dense / c.tensor * (1 - 1 / sharing),
                          p.of_experts / c.tensor / share_experts * (1 - 1 / of_expert)};
    all = std::min(all, exchange_bound(c, sent, times * wire + gathers * gathered, buckets));
  }
  double exposed = 0;
  if (c.zero >= 3) {
    exposed = std::max(all / (parts * micro_batches), all - passes_s);
  } else {
    const double reduce = c.zero == 0 ? all : all * wire / (wire + gathered), gather = all - reduce;
    const double window = each_lane ? backward * micro_batches : backward;
    exposed = std::max(reduce / parts, reduce - window);
    if (gather > 0) exposed += std::max(gather / parts, gather - forward);
  }
  return exposed + cluster_.overlap_slowdown * std::max(0.0, all - exposed);
}

}  // namespace trainctl
