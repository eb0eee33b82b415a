#include "runtime/train/expert_watch.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "parallel/communicator.h"
#include "runtime/base/ensure.h"

namespace trainctl {

namespace {

/// Modules of multi-token prediction come behind the layers.
int watched_layer(const Param& p) { return p.layer + std::max(0, p.mtp - 1); }

}  // namespace

ExpertWatch::ExpertWatch(RankResources& rank) : rank_(rank), micro_batches_(rank.plan.counted_micro_batches) {
  for (const Param& p : rank.tables.params.params) {
    // A layer may have a gate of a shared expert in addition.
    if (p.role == ParamRole::router && (all_.layers.empty() || all_.layers.back() != watched_layer(p)))
      all_.layers.push_back(watched_layer(p));
    has_biases_ |= p.role == ParamRole::selection_bias;
  }
  ENSURE(std::is_sorted(all_.layers.begin(), all_.layers.end()), "a parameter table in another order");
  all_.experts = rank.job.model.moe.num_experts;
  all_.top_k = rank.job.model.moe.top_k;
  own_.assign(all_.layers.size() * size_t(all_.experts), 0);
  all_.quiet = own_;
  if (rank.job.model.moe.capacity_factor > 0) own_dropped_.assign(all_.layers.size(), 0);
  // In the order in which the model writes its counts.
  const auto own = [&](int64_t layer) {
    const auto at = std::lower_bound(all_.layers.begin(), all_.layers.end(), layer);
    if (at != all_.layers.end() && *at == layer) own_layers_.push_back(size_t(at - all_.layers.begin()));
  };
  for (const VirtualStageUses& part : rank.plan.uses.virtual_stages) {
    for (size_t l = 0; l < part.layers.size(); ++l) own(part.first_layer + int64_t(l));
    for (size_t i = 0; i < part.mtp.size(); ++i) own(rank.job.model.num_layers + int64_t(i));
  }
  const StageModel::ExpertCounts counts = StageModel::expert_counts(rank.plan.uses);
  ENSURE(int64_t(own_layers_.size()) == counts.layers, "{} layers with experts, and counts of {}",
         own_layers_.size(), counts.layers);
}

void ExpertWatch::count() {
  ++all_.steps;
  if (!rank_.expert_counts) return;
  const StageModel::ExpertCounts of = StageModel::expert_counts(rank_.plan.uses);
  const auto* counts = static_cast<const int32_t*>(rank_.expert_counts->data());
  for (int64_t m = 0; m < micro_batches_; ++m)
    for (const size_t layer : own_layers_) {
      if (!own_dropped_.empty())
        own_dropped_[layer] +=
            dropped_slots({counts, size_t(of.sequences * of.experts)}, of.experts, of.of_source, of.capacity);
      for (int64_t s = 0; s < of.sequences; ++s, counts += of.experts)
        for (int64_t e = 0; e < of.experts; ++e) own_[layer * size_t(of.experts) + size_t(e)] += counts[e];
    }
}

/// Each bias is saved by one rank alone: the others add zeros to its bits.
void ExpertWatch::add_biases(std::vector<int64_t>& numbers) const {
  std::vector<std::pair<float, size_t>> values;  // and the place of each
  for (const parallel::ShardedParams::StateChunk& chunk : rank_.params->state_chunks()) {
    const Param& p = rank_.tables.params.params[size_t(chunk.param)];
    if (!chunk.saved_here || p.role != ParamRole::selection_bias) continue;
    const auto at = std::lower_bound(all_.layers.begin(), all_.layers.end(), watched_layer(p));
    const size_t first =
        size_t(at - all_.layers.begin()) * size_t(all_.experts) + size_t(chunk.box.row_begin);
    std::vector<float> own(size_t(chunk.box.count()));
    rank_.backend.copy_to_host(*rank_.stream, own.data(), chunk.floats(parallel::StateRole::master),
                               own.size() * sizeof(float));
    rank_.stream->synchronize();
    for (size_t i = 0; i < own.size(); ++i) values.emplace_back(own[i], first + i);
  }
  const size_t before = own_.size();
  for (const auto& [value, at] : values) numbers[before + at] = std::bit_cast<int64_t>(double(value));
}

ExpertSlots ExpertWatch::collect() {
  std::vector<int64_t> numbers = own_;
  numbers.resize(own_.size() * (has_biases_ ? 2 : 1));
  if (has_biases_) add_biases(numbers);
  const size_t with_biases = numbers.size();
  numbers.insert(numbers.end(), own_dropped_.begin(), own_dropped_.end());
  rank_.comms.for_each_axis([&](parallel::Communicator& axis) { parallel::all_sum(axis, numbers); });
  ExpertSlots sums = all_;
  sums.slots.assign(numbers.begin(), numbers.begin() + ptrdiff_t(own_.size()));
  sums.dropped.assign(numbers.begin() + ptrdiff_t(with_biases), numbers.end());
  for (size_t i = own_.size(); i < with_biases; ++i) sums.bias.push_back(std::bit_cast<double>(numbers[i]));
  for (size_t i = 0; i < own_.size(); ++i)
    sums.quiet[i] = all_.quiet[i] = sums.slots[i] > 0 ? 0 : all_.quiet[i] + all_.steps;
  std::fill(own_.begin(), own_.end(), 0);
  std::fill(own_dropped_.begin(), own_dropped_.end(), 0);
  all_.steps = 0;
  return sums;
}

}  // namespace trainctl
