// The step loop of one rank.
#pragma once
#include <memory>
#include <optional>

#include "ckpt/memory_store.h"
#include "data/dataset.h"
#include "runtime/base/activity.h"
#include "runtime/train/bad_steps.h"
#include "runtime/train/checkpointing.h"
#include "runtime/model/executor.h"
#include "runtime/train/measure/gpu_watch.h"
#include "runtime/train/measure/metrics.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/train/rank.h"
#include "runtime/train/save/save_decider.h"

namespace trainctl {

/// The communicators of a rank's groups, split from the world. Each may have only one member.
struct MeshCommunicators {
  std::unique_ptr<parallel::Communicator> tp, dp, pp, tied;   ///< tied: first and last stage, or null
  PipelineEdges edges;
  template <typename Each>
  void for_each(Each each) const {
    for (const auto* axis : {&tp, &dp, &pp, &tied})
      if (*axis) each(**axis);
    edges.for_each(each);
  }
};
/// The groups and edges of a rank's plan. tied: the model ties its embedding. Collective.
MeshCommunicators split_mesh(const RankGroups& groups, parallel::Communicator& world, bool tied);

/// What the rank's plan is made for. dp: its data-parallel group.
DeviceModel device_of_rank(const JobSpec& job, const kernels::Backend& backend,
                           const parallel::Communicator& dp);

/// Gathers the times of all ranks to rank 0, in the order of world ranks; empty on other ranks. Gathers one
/// axis at a time, so that no rank exchanges messages with all others. Collective.
std::vector<RankTimes> gather_times(const parallel::MeshShape& shape, const MeshCommunicators& comms,
                                    const RankTimes& own);

/// The calendar of saves of a rank that begins after `step`. Its decisions become events.
std::unique_ptr<SaveDecider> make_save_decider(const JobSpec& job, const RankOptions& options, int rank,
                                               int64_t step, bool in_memory, Control& control, Clock& clock);

/// The newest readings of a rank's GPU. NaN: the driver does not report that.
void note_gpu(GpuWatch& watch, RankTimes& times);

data::DatasetOptions dataset_options(const JobSpec& job, bool validation);

/// The peak FLOP/s of all devices of the run together. Ranks that share cores or a GPU share its peak.
/// Collective; rank 0 measures the peak if it is not known.
double all_ranks_peak(const JobSpec& job, const RankOptions& options, parallel::Communicator& world, kernels::Backend& backend);

/// Error(kPreflight) if ranks have devices with different numerics, because the bits would then depend on the
/// placement of ranks. Collective.
void require_equal_numerics(parallel::Communicator& world, const std::string& numerics);

/// Error(kData) if the validation data do not have a micro-batch for each lane.
void check_validation_size(const data::Dataset& validation, const JobSpec& job);

/// The optimizer's factors for 0-based step `step`, after `skipped` skipped steps, which do not count for the
/// bias correction.
kernels::AdamWStep adamw_step(const JobSpec& job, int64_t step, int64_t skipped, double grad_norm);

/// The phase that a rank reports during an action of this kind.
RunPhase phase_of(parallel::Act act);

/// What a checkpoint says about the state after `step` steps, except for its tensors.
struct StateDescription {
  const JobSpec& job;
  const RankOptions& options;
  DataPosition start;   ///< of the step with which the process began
  int64_t step = 0;
  std::string numerics;
  double last_loss = 0;   ///< of the last step that was applied; NaN: none
  BadSteps bad_steps;
  std::string fingerprints_json;   ///< of the data files, a JSON list
};
/// What the slots for copies of a rank's state depend on.
struct SlotsWanted {
  const JobSpec& job;
  const RankOptions& options;
  int rank = 0;
  uint64_t planned_bytes = 0;   ///< of a rank's host memory without the slots, which it may still take
  size_t tensors = 0;
};
/// This rank's slots; null on all ranks if one of them has none, if the job wants none, or if the memory of
/// the machine would get scarce. Error(kIo) if the job insists. Collective over the mesh.
///   why   set to a sentence on a rank that could not get its own
std::unique_ptr<ckpt::NodeMemory> open_slots(const SlotsWanted& wanted, const parallel::ShardedParams& params,
                                             const MeshCommunicators& comms, std::string& why);

ckpt::StateInfo describe_state(const StateDescription& now);

class Trainer {
 public:
  Trainer(const JobSpec& job, const RankOptions& options, parallel::Communicator& world, kernels::Backend& backend,
          Control& control, FileSystem& fs);
  ~Trainer();
  RankOutcome run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainctl
