// What launch and resume share on the way from a checked spec to the supervisor.
#pragma once
#include <functional>
#include <string>

#include "runtime/supervise/start/launch.h"
#include "runtime/supervise/preflight/preflight.h"
#include "runtime/supervise/loop/supervisor.h"
#include "runtime/machine/rank_device.h"

namespace trainctl {

/// Preflight, what computes, and the measured peak; nothing is printed before all is well.
struct Ready {
  Preflight preflight;
  RunNodes nodes;
  SlurmFacts slurm;  ///< of the job around it
  std::string numerics;
  double peak_flops_per_s = 0, seconds = 0;
};
/// `checked` is called between the two: from then on the run has a folder, where `status` and `stop` find it.
/// `living`: an attempt that may run; its ranks have the memory that they need, and the peak is known.
Ready get_ready(const JobSpec& job, FileSystem& fs, Clock& clock,
                const std::function<void(const Ready&)>& checked = {}, const AttemptFile* living = nullptr);

/// Of the ranks, those that may run on this machine; nothing: all.
std::optional<int> ranks_here(const RunNodes& nodes);

/// The job's `device`, with `auto` decided: by the GPUs of this machine for the ranks that may run on it, or
/// where none may, by those that Slurm gives each node.
DeviceKind device_of_run(const JobSpec& job, FileSystem& fs);
/// `auto` is decided once: from then on the run computes on that device, whatever a later start finds.
ParsedJob with_device(const ParsedJob& job, DeviceKind kind);

/// "4 ranks = tensor 1 × pipeline 2 × data 2".
std::string mesh_text(const JobSpec& job);
void print_header(Console& console, const std::string& id, const RunDirectory& run, const JobSpec& job,
                  const Ready& ready);

SupervisePlan plan_of(const ParsedJob& job, const RunDirectory& run, const std::string& program,
                      const Ready& ready, int64_t max_steps);

/// Error(kPreflight) where the folder of the run's checkpoints holds another run's.
void refuse_foreign_checkpoints(FileSystem& fs, const RunDirectory& run, const JobSpec& job);

/// Error(kUsage) where another supervisor has the run.
RunLock lock_or_refuse(FileSystem& fs, const RunDirectory& run, const std::string& id);
[[noreturn]] void refuse_busy(FileSystem& fs, const RunDirectory& run, const std::string& id);
void note_lock(Console& console, const RunLock& lock);

}  // namespace trainctl
