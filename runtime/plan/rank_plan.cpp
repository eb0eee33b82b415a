#include "runtime/plan/rank_plan.h"

#include "runtime/base/error.h"

namespace trainctl {

RankParts rank_parts(const JobSpec& job, const ParamTable& table, const parallel::MeshPosition& at) {
  const int stages = job.parallelism.pipeline;
  const bool end_stage = at.pp == 0 || at.pp == stages - 1;
  return {.at = at,
          .uses = stage_uses(table, job, at),
          .sharding = sharding_options(job, at),
          .tied_peer = table.tied && stages > 1 && end_stage};
}

RankPlan make_rank_plan(const JobSpec& job, const ParamTable& table, const parallel::MeshPosition& at) {
  RankPlan plan{rank_parts(job, table, at), {}, {}};
  plan.program = stage_program(job, at.pp, plan.uses);
  const std::string problem =
      parallel::step_problem(plan.program.shape, plan.program.slots, plan.program.actions);
  ENSURE(problem.empty(), "{}", problem);
  plan.model = {.slots = plan.program.slots.slots,
                .split_backward = splits_backward(job),
                .loss_scale = float(1.0 / double(job.tokens_per_step()))};
  return plan;
}

}  // namespace trainctl
