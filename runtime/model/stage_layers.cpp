#include "runtime/model/stage_layers.h"

#include <numeric>
#include <set>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

/// A stage or a virtual stage that may take a layer: the cheapest first, of equal ones the later.
struct Candidate {
  double cost = 0;
  int index = 0;
  bool operator<(const Candidate& other) const {
    return cost != other.cost ? cost < other.cost : index > other.index;
  }
};

/// The costs of a cut. Sums are products of counts, so that equal stages have equal costs.
struct Costs {
  const PartFlops& parts;
  int stages = 1, virtual_stages = 1;

  /// Beyond its layers.
  double fixed(int virtual_stage) const {
    return (virtual_stage == 0 ? parts.embedding : 0) +
           (virtual_stage == stages * virtual_stages - 1 ? parts.head : 0);
  }
  double of_virtual_stage(int virtual_stage, int64_t layers) const {
    return fixed(virtual_stage) + double(layers) * parts.layer;
  }
  double of_stage(int stage, const std::vector<int64_t>& counts) const {
    double fixed_costs = 0;
    int64_t layers = 0;
    for (int c = stage; c < stages * virtual_stages; c += stages) {
      fixed_costs += fixed(c);
      layers += counts[size_t(c)];
    }
    return fixed_costs + double(layers) * parts.layer;
  }
};

}  // namespace

// Every layer costs the same and never makes a stage cheaper. So giving each layer to the stage that is
// cheapest with it keeps the dearest stage as cheap as any cut can.
std::vector<int64_t> balanced_layers(int64_t layers, int stages, int virtual_stages, const PartFlops& costs) {
  const int all = stages * virtual_stages;
  if (all == 1) return {layers};
  std::vector<int64_t> counts(size_t(all), 1);
  counts.front() = counts.back() = 0;
  int64_t left = layers - (all - 2);
  ENSURE(left >= 0, "{} layers for {} virtual stages", layers, all);
  const Costs cost{costs, stages, virtual_stages};
  std::set<Candidate> by_stage;
  std::vector<std::set<Candidate>> of_stage(static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    by_stage.insert({cost.of_stage(stage, counts), stage});
    for (int c = stage; c < all; c += stages)
      of_stage[size_t(stage)].insert({cost.of_virtual_stage(c, counts[size_t(c)]), c});
  }
  for (; left > 0; --left) {
    const int stage = by_stage.begin()->index;
    std::set<Candidate>& parts = of_stage[size_t(stage)];
    const int c = parts.begin()->index;
    parts.erase(parts.begin());
    parts.insert({cost.of_virtual_stage(c, ++counts[size_t(c)]), c});
    by_stage.erase(by_stage.begin());
    by_stage.insert({cost.of_stage(stage, counts), stage});
  }
  return counts;
}

std::vector<int64_t> stage_layers(const JobSpec& job) {
  const ParallelSpec& p = job.parallelism;
  if (!p.stage_layers.empty()) {
    ENSURE(
        p.stage_layers.size() == size_t(p.pipeline) * size_t(p.virtual_stages) &&
            std::accumulate(p.stage_layers.begin(), p.stage_layers.end(), int64_t{0}) == job.model.num_layers,
        "stage_layers of {} entries", p.stage_layers.size());
    return p.stage_layers;
  }
  if (p.pipeline * p.virtual_stages == 1) return {job.model.num_layers};
  return balanced_layers(job.model.num_layers, p.pipeline, p.virtual_stages,
                         part_flops(job.model, job.data.seq_len));
}

std::vector<StageWork> stage_work(const JobSpec& job, const PartFlops& costs) {
  const int stages = job.parallelism.pipeline;
  const std::vector<int64_t> counts = stage_layers(job);
  const Costs cost{costs, stages, job.parallelism.virtual_stages};
  const double all = costs.embedding + double(job.model.num_layers) * costs.layer + costs.head;
  std::vector<StageWork> work;
  for (int stage = 0; stage < stages; ++stage) {
    StageWork of{.share = cost.of_stage(stage, counts) / all};
    for (size_t c = size_t(stage); c < counts.size(); c += size_t(stages)) of.layers.push_back(counts[c]);
    work.push_back(std::move(of));
  }
  return work;
}

}  // namespace trainctl
