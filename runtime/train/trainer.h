// The step loop of one rank.
#pragma once
#include <memory>
#include <optional>

#include "data/dataset.h"
#include "runtime/base/activity.h"
#include "runtime/train/checkpointing.h"
#include "runtime/model/executor.h"
#include "runtime/train/measure/metrics.h"
#include "runtime/train/rank.h"

namespace trainctl {

/// Communicators of every axis, made by split from the world; each may have one member.
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
MeshCommunicators split_mesh(const parallel::MeshShape& shape, parallel::Communicator& world, bool tied, bool ring);

/// Every rank's times in the order of world ranks on rank 0, nothing elsewhere: gathered an axis at a time,
/// so that no rank talks to all others. Collective.
std::vector<RankTimes> gather_times(const parallel::MeshShape& shape, const MeshCommunicators& comms,
                                    const RankTimes& own);

data::DatasetOptions dataset_options(const JobSpec& job, bool validation);

/// FLOP/s of all devices of the run together; ranks that share cores or a GPU share its peak. Rank 0 may have to measure it.
double all_ranks_peak(const JobSpec& job, const RankOptions& options, parallel::Communicator& world, kernels::Backend& backend);

/// Ranks on unlike devices would give bits that depend on which of them computes what: Error(kPreflight). Collective.
void require_equal_numerics(parallel::Communicator& world, const std::string& numerics);

/// Error(kData) if an evaluation could not give each lane a micro-batch.
void check_validation_size(const data::Dataset& validation, const JobSpec& job);

/// The factors of 0-based step `step`, after `skipped` steps that changed nothing.
kernels::AdamWStep adamw_step(const JobSpec& job, int64_t step, int64_t skipped, double grad_norm);

/// What a rank reports while it does such an action.
RunPhase phase_of(parallel::Act act);

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
