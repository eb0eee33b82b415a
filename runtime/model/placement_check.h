// The checker of a step's sums: whether each gradient is added over exactly the ranks that have parts of
// it, no sum is missing or made twice, and each parameter counts once. It runs the model on its twin of
// placements, before any step.
#pragma once
#include <functional>

#include "runtime/base/problem.h"
#include "runtime/model/placement_groups.h"
#include "runtime/model/stage_model.h"
#include "runtime/model/stage_program.h"

namespace trainctl {

/// The axis along which placements are followed, and this rank's place on it.
struct PlacementAxis {
  parallel::AxisSet axis = parallel::axes::tensor;
  int ranks = 1, rank = 0;
  bool converts_biases = false;   ///< as devices do whose products take biases in the dtype of activations
  Moves moves = Moves::others;    ///< context, experts: the ranks along the axis are those of that group
  bool is_tensor() const { return axis == parallel::axes::tensor; }
};

/// Makes the tensor group of a check; a test puts a faulty one there.
using MakeTensorTwin = std::function<std::unique_ptr<parallel::TensorParallel>(
    Placements&, const PlacementAxis&, parallel::Communicator&, kernels::Backend&, kernels::Stream&,
    bool sequence_parallel)>;

/// What is wrong along one axis with the gradients of a stage of `job`, as one sentence, or nothing. The job
/// has one context block a rank. Context ranks that exchange heads are followed as if they gathered keys.
Problem placement_problem(const StageUses& uses, const JobSpec& job, const PlacementAxis& along,
                          const MakeTensorTwin& make_tensor_twin = {},
                          const MakeExchangeTwin& make_exchange_twin = {});

/// What is wrong with what the ranks of a stage's tensor group share, count and save of the parameters:
/// `uses` of each of them.
Problem count_problem(const ParamTable& table, const std::vector<StageUses>& uses);

/// All of it for the stage of rank `at`, along the axes that have more than one rank.
Problem placement_problem(const ModelTables& tables, const JobSpec& job, const parallel::MeshPosition& at);

}  // namespace trainctl
