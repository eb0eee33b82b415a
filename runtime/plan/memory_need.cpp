#include "runtime/plan/memory_need.h"

#include <algorithm>

namespace trainctl {

namespace {

MemoryNeed need_of_stages(uint64_t ranks_of_stage, MemoryCopies copies, const JobPlan& plan) {
  MemoryNeed need{.copies_give_way = copies == MemoryCopies::automatic};
  need.terms = {{"weights", 0},
                {"gradients", 0},
                {"optimizer state", 0},
                {"communication buffers", 0},
                {"activations", 0},
                {"scratch", 0},
                {"data", 0},
                {kCopiesTerm, 0},
                {"workspace", 0},
                {"NCCL (estimate)", 0},
                {"the programs", 0}};
  for (const RankMemory& m : plan.stages) {
    const size_t bytes[] = {m.sharding.weights,
                            m.sharding.gradients,
                            m.sharding.optimizer,
                            m.sharding.communication,
                            m.stage.activations,
                            m.stage.scratch() + m.sharding.matrix_scratch,
                            m.data,
                            m.copies_count ? m.copies : 0,
                            m.workspace,
                            m.nccl,
                            m.saving_beside_copies() + m.trace + m.program};
    for (size_t i = 0; i < need.terms.size(); ++i) need.terms[i].second += bytes[i] * ranks_of_stage;
    need.total += m.total() * ranks_of_stage;
    if (m.copies_count) need.copies += m.copies * ranks_of_stage;
    need.saving += (m.saving - m.saving_beside_copies()) * ranks_of_stage;
  }
  std::stable_sort(need.terms.begin(), need.terms.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return need;
}

}  // namespace

MemoryNeed memory_need(const ParallelSpec& parallelism, MemoryCopies copies, const JobPlan& plan) {
  return need_of_stages(uint64_t(parallelism.tensor) * uint64_t(parallelism.ranks_of_parameters()), copies,
                        plan);
}

MemoryNeed gpu_memory_need(const DeviceUse& use, MemoryCopies copies, const JobPlan& plan) {
  // Which stages meet on a GPU depends on the order of ranks; the worst rank is taken for each of them.
  JobPlan worst = plan;
  worst.stages = {plan.worst()};
  return need_of_stages(uint64_t(std::min(use.ranks_per_gpu, use.ranks)), copies, worst);
}

}  // namespace trainctl
