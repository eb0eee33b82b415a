// One rank of a run, from the resolved spec to the end of training: the same code on a thread, under mpirun, on a CPU or a GPU.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "runtime/spec/fields/job.h"
#include "runtime/train/control.h"
#include "runtime/train/device_copies.h"
#include "runtime/train/measure/node_ranks.h"

namespace trainctl {

struct RankOptions {
  std::string run_id;
  std::string resolved_spec_json, spec_hash;
  std::string checkpoint_dir;         ///< where to save: <run>/ckpt
  std::string resume_from;            ///< a step directory, or "" for a fresh start
  bool new_data = false;              ///< begin the data at their start, not where resume_from stopped
  std::string lineage_json = "[]";    ///< for the checkpoints
  uint64_t epoch = 0;                 ///< of the run's membership
  int64_t max_steps = 0;              ///< stop after this step (0: schedule.total_steps)
  std::string gradients_dir;          ///< write the first step's gradients here as a checkpoint of role gradient, or ""
  double matmul_flops_per_s = 0;      ///< peak of a rank for MFU; 0: unknown
  size_t most_staging_bytes = kStagingBytes;   ///< limit of the pinned host memory for saving and loading
  std::vector<NodeRanks> nodes;                ///< of a run on several nodes: which ranks each runs, in order
  int gpu = -1;                       ///< index of its GPU, for what the driver tells of it; -1: none
};

enum class RankOutcome { finished, stopped };

/// Runs rank `world.rank()` to its end. Throws Error; the caller writes the crash record.
RankOutcome run_rank(const JobSpec& job, const RankOptions& options, parallel::Communicator& world,
                     kernels::Backend& backend, Control& control, FileSystem& fs);

}  // namespace trainctl
