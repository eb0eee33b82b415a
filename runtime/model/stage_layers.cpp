#include "runtime/model/stage_layers.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

using Counts = std::vector<int64_t>;

/// A stage or a virtual stage that may take a layer: the cheapest first, of equal ones the later.
struct Candidate {
  double cost = 0;
  int index = 0;
  bool operator<(const Candidate& other) const {
    return cost != other.cost ? cost < other.cost : index > other.index;
  }
};

/// The costs of a cut.
struct Costs {
  const PartFlops& parts;
  const parallel::VirtualStages& order;
  const std::vector<double>& slowness;  // empty: 1 of each

  int all() const { return order.count(); }
  size_t stages() const { return size_t(order.stages); }
  size_t stage_of(int c) const { return size_t(order.stage_of(c)); }
  double slow(size_t stage) const { return slowness.empty() ? 1 : slowness[stage]; }
  bool layers_are_alike() const {
    return std::adjacent_find(parts.layers.begin(), parts.layers.end(), std::not_equal_to<>()) ==
           parts.layers.end();
  }
  /// Beyond its layers.
  double fixed(int virtual_stage) const {
    return (virtual_stage == 0 ? parts.embedding : 0) + (virtual_stage == all() - 1 ? parts.head : 0);
  }
  /// Of each stage. Sums are products of counts, so that equal stages have equal costs.
  std::vector<double> of_stages(const Counts& counts) const {
    std::vector<double> costs(stages());
    std::vector<std::map<double, int64_t>> layers(stages());  // of one cost: how many
    auto layer = parts.layers.begin();
    for (int c = 0; c < all(); ++c) {
      costs[stage_of(c)] += fixed(c);
      for (int64_t i = 0; i < counts[size_t(c)]; ++i) ++layers[stage_of(c)][*layer++];
    }
    for (size_t stage = 0; stage < costs.size(); ++stage) {
      for (const auto& [cost, count] : layers[stage]) costs[stage] += double(count) * cost;
      costs[stage] *= slow(stage);
    }
    return costs;
  }
};

/// The fewest layers that a virtual stage may have.
int64_t least(int virtual_stage, int all) { return virtual_stage == 0 || virtual_stage == all - 1 ? 0 : 1; }

// A layer never makes a stage cheaper. So giving each layer to the stage that is cheapest with it keeps
// the dearest stage as cheap as any cut can.
Counts cut_alike(const Costs& cost, double of_layer, int64_t layers) {
  const int all = cost.all();
  Counts counts;
  for (int c = 0; c < all; ++c) counts.push_back(least(c, all));
  const auto of_virtual_stage = [&](int c) { return cost.fixed(c) + double(counts[size_t(c)]) * of_layer; };
  // With one layer more.
  const auto of_stage = [&](int stage) {
    double fixed = 0;
    int64_t count = 1;
    for (int local = 0; local < cost.order.each; ++local) {
      const int c = cost.order.global_of(stage, local);
      fixed += cost.fixed(c), count += counts[size_t(c)];
    }
    return (fixed + double(count) * of_layer) * cost.slow(size_t(stage));
  };
  std::set<Candidate> by_stage;
  std::vector<std::set<Candidate>> of_stages(cost.stages());
  for (int stage = 0; stage < cost.order.stages; ++stage) by_stage.insert({of_stage(stage), stage});
  for (int c = 0; c < all; ++c) of_stages[cost.stage_of(c)].insert({of_virtual_stage(c), c});
  for (int64_t left = layers - (all - 2); left > 0; --left) {
    const int stage = by_stage.begin()->index;
    std::set<Candidate>& parts = of_stages[size_t(stage)];
    const int c = parts.begin()->index;
    parts.erase(parts.begin());
    ++counts[size_t(c)];
    parts.insert({of_virtual_stage(c), c});
    by_stage.erase(by_stage.begin());
    by_stage.insert({of_stage(stage), stage});
  }
  return counts;
}

/// The cut whose dearest virtual stage costs least, by the cheapest way to cut the first layers.
Counts cut_unlike(const Costs& cost) {
  const size_t all = size_t(cost.all()), layers = cost.parts.layers.size();
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // dearest[c][l]: of the first c virtual stages with the first l layers; from[c][l]: where the last of
  // them begins.
  std::vector<std::vector<double>> dearest(all + 1, std::vector<double>(layers + 1, kNone));
  std::vector<std::vector<size_t>> from(all + 1, std::vector<size_t>(layers + 1));
  dearest[0][0] = 0;
  for (size_t c = 0; c < all; ++c)
    for (size_t begin = 0; begin <= layers; ++begin) {
      const double slow = cost.slow(cost.stage_of(int(c)));
      double own = cost.fixed(int(c));
      for (size_t end = begin; dearest[c][begin] < kNone && end <= layers; ++end) {
        if (end > begin) own += cost.parts.layers[end - 1];
        if (int64_t(end - begin) < least(int(c), int(all))) continue;
        const double worst = std::max(dearest[c][begin], own * slow);
        if (worst >= dearest[c + 1][end]) continue;
        dearest[c + 1][end] = worst;
        from[c + 1][end] = begin;
      }
    }
  Counts counts(all);
  for (size_t c = all, end = layers; c-- > 0; end = from[c + 1][end])
    counts[c] = int64_t(end - from[c + 1][end]);
  return counts;
}

/// The stages' costs, the dearest first: of two cuts the more even one has the smaller list.
std::vector<double> judged(const Costs& cost, const Counts& counts) {
  std::vector<double> costs = cost.of_stages(counts);
  std::sort(costs.begin(), costs.end(), std::greater<>());
  return costs;
}

/// Shifts a layer from one virtual stage to another, and with it the bounds between them, as long as that
/// makes the stages more even.
void even_out(const Costs& cost, Counts& counts) {
  std::vector<double> best = judged(cost, counts);
  for (bool better = true; better;) {
    better = false;
    for (size_t from = 0; from < counts.size(); ++from)
      for (size_t to = 0; to < counts.size(); ++to) {
        if (from == to || counts[from] <= least(int(from), cost.all())) continue;
        Counts shifted = counts;
        --shifted[from], ++shifted[to];
        if (std::vector<double> now = judged(cost, shifted); now < best) {
          best = std::move(now);
          counts = std::move(shifted);
          better = true;
        }
      }
  }
}

}  // namespace

std::vector<int64_t> balanced_layers(const PartFlops& parts, const parallel::VirtualStages& stages,
                                     const std::vector<double>& slowness) {
  ENSURE(slowness.empty() || slowness.size() == size_t(stages.stages), "{} stages, slowness of {}",
         stages.stages, slowness.size());
  const Costs cost{parts, stages, slowness};
  const int64_t layers = int64_t(parts.layers.size());
  ENSURE(layers >= cost.all() - 2, "{} layers for {} virtual stages", layers, cost.all());
  if (cost.all() == 1) return {layers};
  if (cost.layers_are_alike())
    return cut_alike(cost, parts.layers.empty() ? 0 : parts.layers.front(), layers);
  Counts counts = cut_unlike(cost);
  even_out(cost, counts);
  return counts;
}

std::vector<int64_t> stage_layers(const ModelPlan& model, const ParallelSpec& p, int64_t seq_len) {
  const int64_t layers = int64_t(model.layers.size());
  if (!p.stage_layers.empty()) {
    ENSURE(p.stage_layers.size() == size_t(p.pipeline) * size_t(p.virtual_stages) &&
               std::accumulate(p.stage_layers.begin(), p.stage_layers.end(), int64_t{0}) == layers,
           "stage_layers of {} entries", p.stage_layers.size());
    return p.stage_layers;
  }
  if (p.pipeline * p.virtual_stages == 1) return {layers};
  return balanced_layers(part_flops(model, seq_len), p.stage_order());
}

std::vector<double> stage_costs(const std::vector<int64_t>& counts, const parallel::VirtualStages& stages,
                                const PartFlops& parts, const std::vector<double>& slowness) {
  return Costs{parts, stages, slowness}.of_stages(counts);
}

std::vector<StageWork> stage_work(const std::vector<int64_t>& counts, const parallel::VirtualStages& stages,
                                  const PartFlops& parts) {
  const std::vector<double> costs = stage_costs(counts, stages, parts);
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::vector<StageWork> work;
  for (int stage = 0; stage < stages.stages; ++stage) {
    StageWork of{.share = costs[size_t(stage)] / all};
    for (int local = 0; local < stages.each; ++local)
      of.layers.push_back(counts[size_t(stages.global_of(stage, local))]);
    work.push_back(std::move(of));
  }
  return work;
}

}  // namespace trainctl
