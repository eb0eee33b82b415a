// The steps that launch and resume share on the way from a checked spec to the supervisor.
#pragma once
#include <functional>
#include <string>

#include "runtime/supervise/start/launch.h"
#include "runtime/supervise/preflight/preflight.h"
#include "runtime/supervise/care/run_store.h"
#include "runtime/supervise/loop/supervisor.h"
#include "runtime/machine/rank_device.h"

namespace trainctl {

/// The results of the checks before a start.
struct Ready {
  Preflight preflight;
  RunNodes nodes;
  SlurmFacts slurm;      ///< the Slurm job of this process
  std::string numerics;  ///< of this machine's devices, see machine_numerics
  double peak_flops_per_s = 0, seconds = 0;  ///< peak of one rank, 0: not known; duration of get_ready
};
/// Runs preflight and then measures the peak. Prints nothing.
///   checked   called after preflight, before the measurement; there the caller makes the run's folder, in which `status`
///             and `stop` find the run
///   living    an attempt whose ranks may run: they have their memory already, and its peak is used
Ready get_ready(const JobSpec& job, FileSystem& fs, Clock& clock,
                const std::function<void(const Ready&)>& checked = {}, const AttemptFile* living = nullptr);

/// The number of ranks that may run on this machine; nullopt: all.
std::optional<int> ranks_here(const RunNodes& nodes);

/// The number of ranks on another node whose second copies this machine holds.
int second_ranks_here(const NodeNeed& need, const CheckpointSpec& checkpoint, const RunNodes& nodes);

/// The job's `device` with `auto` decided: from the GPUs of this machine if ranks may run on it, otherwise
/// from the GPUs that Slurm gives to each node.
DeviceKind device_of_run(const NodeNeed& need, FileSystem& fs);
/// The job with `device` set to `kind`, so that later starts of the run do not decide `auto` again.
ParsedJob with_device(const ParsedJob& job, DeviceKind kind);
/// The job of a new run with what it takes of its data set where it is `auto`: `data.documents` to `mask`
/// where the sources of training and validation data all have the boundaries of documents, `data.loss` to
/// what the loss files of its training sources hold. A resume never decides: a run keeps what it began with.
///   parent   the job of the run that it begins from (BranchPoint), whose choices stay; null: none
ParsedJob with_data_decided(const ParsedJob& job, FileSystem& fs, const DataSpec* parent = nullptr);

/// "4 ranks = tensor 1 × pipeline 2 × data 2".
std::string mesh_text(const parallel::MeshShape& mesh);
void print_header(Console& console, const std::string& id, const RunDirectory& run, const JobSpec& job,
                  const Ready& ready);

SupervisePlan plan_of(const ParsedJob& job, const RunDirectory& run, const std::string& program,
                      const Ready& ready, int64_t max_steps);

/// Error(kPreflight) if `directory`, the folder for the run's checkpoints, has checkpoints of another run.
void refuse_foreign_checkpoints(FileSystem& fs, const std::string& directory);

/// Takes the run's lock. Error(kUsage) if another supervisor holds it.
RunLock lock_or_refuse(FileSystem& fs, const RunDirectory& run, const std::string& id);
[[noreturn]] void refuse_busy(FileSystem& fs, const RunDirectory& run, const std::string& id);
void note_lock(Console& console, const RunLock& lock);
/// Error(kPreflight) if the store cannot be used.
void note_store(Console& console, const StoreCheck& check);

}  // namespace trainctl
