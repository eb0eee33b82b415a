// RankResources holds what one rank trains with: its communicators, its memory and its part of the model,
// allocated as its plan says.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "parallel/rehearsal.h"
#include "parallel/tensor_parallel.h"
#include "runtime/model/stage_model.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/train/control/rank_activity.h"
#include "runtime/train/measure/node_ranks.h"
#include "runtime/train/mesh_communicators.h"
#include "runtime/train/rank.h"
#include "runtime/train/save/checkpointing.h"
#include "runtime/train/token_feed.h"

namespace trainctl {

/// Members that are used by others come before them: they are destroyed after them.
class RankResources {
 public:
  /// Splits the world and makes the plan. Collective. The arguments must outlive this object.
  /// nodes: the ranks of each, in order; empty: one machine.
  RankResources(const JobSpec& job, parallel::Communicator& world, kernels::Backend& backend,
                const std::vector<NodeRanks>& nodes);
  RankResources(const RankResources&) = delete;
  RankResources& operator=(const RankResources&) = delete;

  /// Allocates everything. Collective only in that every rank must do it before the first step.
  /// Error(kPreflight): the folder for state in a file cannot be used.
  ///   scratch_folder   for it, where the job names none; "": /tmp
  void build(size_t most_staging_bytes, const std::string& scratch_folder, RankActivity& activity);
  /// Loads the kernels of a step, where a device loads any: no peer waits for this rank yet. Then connects it
  /// with the peers of the step. Collective.
  void rehearse(RankActivity& activity);

  RankState state(std::function<void(uint64_t done, uint64_t total)> progress = {});
  /// Host memory: StageModel::loss_sums() doubles for each micro-batch of this rank; valid when the stream has
  /// reached its end.
  double* loss_sums() const { return static_cast<double*>(losses->data()); }
  /// Whether this rank's losses count: one rank of each data-parallel position.
  bool owns_losses() const { return plan.batch.last && at.tp == 0; }

  const JobSpec& job;

 private:
  bool rehearsing_ = false;
  /// Of the step, with the members of each group.
  parallel::PerAxis<parallel::Rehearsed> rehearsed_;
  parallel::Rehearsed tied_, experts_, expert_data_, gathers_, expert_gathers_;
  struct RehearsedAxis {
    std::unique_ptr<parallel::Communicator>* axis;
    parallel::Rehearsed* messages;
  };
  std::vector<RehearsedAxis> rehearsed_axes();
  std::unique_ptr<File> state_file(const std::string& scratch_folder) const;

 public:
  parallel::Communicator& world;
  kernels::Backend& backend;
  const parallel::MeshShape mesh;
  const parallel::MeshPosition at;
  const ModelTables tables;
  MeshCommunicators comms;
  const RankPlan plan;
  const std::string numerics;  ///< of the devices of the run (run_numerics)
  std::unique_ptr<kernels::Stream> stream;
  std::unique_ptr<parallel::TensorParallel> tp;
  std::unique_ptr<parallel::ShardedParams> params;
  std::unique_ptr<kernels::Stream> saving_stream;  ///< copies of the state, during the steps
  std::unique_ptr<StateStaging> staging;           ///< on saving_stream
  std::unique_ptr<DeviceChunks> device_chunks;
  std::unique_ptr<StageModel> model;
  std::unique_ptr<TokenFeed> tokens;  ///< of a rank that reads tokens, else null
  std::unique_ptr<kernels::Buffer> losses;
  std::unique_ptr<kernels::Buffer> token_losses;   ///< StageModel::watch_losses; null with one source of data
  std::unique_ptr<kernels::Buffer> expert_counts;  ///< StageModel::watch_experts; null without experts
};

/// Error(kPreflight) if ranks have devices with different numerics, because the bits would then depend on the
/// placement of ranks. Collective.
void require_equal_numerics(parallel::Communicator& world, const std::string& numerics);

}  // namespace trainctl
