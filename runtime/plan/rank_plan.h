// What one rank of a job has and does, from the job, the model's parameters and its place in the mesh alone: the
// one derivation that the trainer executes, the planner adds up, the tally counts and the generator runs
// forward. Pure.
#pragma once
#include "parallel/mesh.h"
#include "parallel/sharded_params.h"
#include "runtime/model/stage_program.h"
#include "runtime/model/stage_uses.h"

namespace trainctl {

/// What does not depend on the micro-batches of a step, of which a plan may have a billion.
struct RankParts {
  parallel::MeshPosition at;
  StageUses uses;   ///< parameters and the parts of each chunk
  parallel::ShardingOptions sharding;
  bool tied_peer = false;   ///< another stage holds the other use of the tied embedding
};
RankParts rank_parts(const JobSpec& job, const ParamTable& table, const parallel::MeshPosition& at);

struct RankPlan : RankParts {
  StageProgram program;   ///< checked (parallel::step_problem)
  StageModel::Options model;
};
RankPlan make_rank_plan(const JobSpec& job, const ParamTable& table, const parallel::MeshPosition& at);

}  // namespace trainctl
