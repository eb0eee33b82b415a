#include "runtime/plan/pipeline_plan.h"

#include <algorithm>

#include "runtime/model/stage_program.h"

namespace trainctl {
namespace {

/// A step of `shape`, simulated from end to end.
struct Simulated {
  PipelinePlan plan;
  double busy = 0, idle = 0;  // of all stages, in the costs' unit
};

Simulated simulate_step(const StepCut& cut, const parallel::PipelineShape& shape) {
  Simulated result;
  const std::vector<parallel::Program> programs = pipeline_programs(shape, cut.splits_backward);
  for (const parallel::Program& program : programs) {
    result.plan.slots.push_back(plan_slots(program, shape.virtual_stages, shape.micro_batches).slots);
    result.plan.sends.push_back(
        std::count_if(program.begin(), program.end(), [](const parallel::Instruction& i) {
          return i.op == parallel::Op::send_activation || i.op == parallel::Op::send_gradient;
        }));
  }
  const parallel::Timeline timeline = parallel::simulate(shape, programs, {});
  result.plan.bubble_fraction = timeline.bubble_fraction;
  const double all = timeline.makespan * shape.stages;
  result.idle = all * timeline.bubble_fraction;
  result.busy = all - result.idle;
  return result;
}

}  // namespace

PipelinePlan plan_pipeline(const StepCut& cut, int dp_rank, int64_t most_simulated) {
  parallel::PipelineShape shape = pipeline_shape(cut, dp_rank);
  const int64_t all = shape.micro_batches, round = shape.stages;
  // Two rounds fill every pipeline: the interleaved one runs furthest ahead, by less than that.
  const int64_t fewer = all % round + 2 * round, more = fewer + round;
  if (all <= more || all * round * shape.virtual_stages <= most_simulated)
    return simulate_step(cut, shape).plan;
  shape.micro_batches = int(fewer);
  Simulated first = simulate_step(cut, shape);
  shape.micro_batches = int(more);
  const Simulated second = simulate_step(cut, shape);
  const int64_t rounds = (all - fewer) / round;
  PipelinePlan plan = std::move(first.plan);
  for (size_t stage = 0; stage < plan.slots.size(); ++stage) {
    for (size_t virtual_stage = 0; virtual_stage < plan.slots[stage].size(); ++virtual_stage)
      plan.slots[stage][virtual_stage] +=
          int(rounds * (second.plan.slots[stage][virtual_stage] - plan.slots[stage][virtual_stage]));
    plan.sends[stage] += rounds * (second.plan.sends[stage] - plan.sends[stage]);
  }
  const double busy = first.busy + double(rounds) * (second.busy - first.busy);
  plan.bubble_fraction = second.idle / (second.idle + busy);
  return plan;
}

}  // namespace trainctl
