// `launch` and `resume`: everything between a checked job spec and the supervisor.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervise/history/branch.h"
#include "runtime/supervise/loop/supervisor.h"

namespace trainctl {

struct LaunchRequest {
  ParsedJob job;
  std::string program;               ///< this binary
  std::vector<std::string> command;  ///< as typed, for run.json
  int64_t max_steps = 0;
  std::optional<BranchPoint> from;  ///< begin from this checkpoint of another run
  bool requeue = false;  ///< give the Slurm job around it back to the queue when Slurm wants the run to stop
};

/// What a launch would do, for --dry-run: nothing is written, nothing started.
struct LaunchPreview {
  std::string run_directory;
  std::vector<std::string> files;  ///< that would be made
  std::string branch;              ///< what it begins from, and the changes; "" without --from
  std::string memory;              ///< "1.2 GiB needed, 8.0 GiB available"
  std::string placement;           ///< which nodes run how many ranks; "" on one machine
  std::string agents;              ///< the command that starts an agent on a node; "" on one machine
  std::string command;  ///< of mpirun, with its environment, for a shell; agents that start ranks themselves
                        ///< do not use it
};
LaunchPreview preview_launch(const LaunchRequest& request, FileSystem& fs);

/// Starts a new run, or goes on with the run of that id if it is the same job. Throws Error (preflight, data,
/// another job's run) where nothing was started.
RunResult launch_run(const LaunchRequest& request, FileSystem& fs, Clock& clock, Console& console);

struct ResumeRequest {
  RunDirectory run;
  ParsedJob before;  ///< the run's job.json
  ParsedJob now;     ///< with the overrides
  std::string program;
  std::optional<int64_t> step;  ///< this checkpoint and no other
  int64_t max_steps = 0;
  bool requeue = false;  ///< as in LaunchRequest
  std::string chain;     ///< name of Slurm jobs that wait for the end of this one
  /// Why this takes the place of a supervisor that died, one sentence; "": a person resumes the run.
  std::string take_over;
};
/// Error(kCheckpoint): the wanted checkpoint is missing or unusable. Error(kData): data changed.
RunResult resume_run(const ResumeRequest& request, FileSystem& fs, Clock& clock, Console& console);

/// The overrides of a resume, with parallelism.world_size added where they give factors of the mesh alone and
/// the product that the run was given does not fit them.
std::vector<std::string> with_world_size(const ParsedJob& before, std::vector<std::string> overrides);

/// "8 → 4 ranks: data 4 → 2 (tensor, pipeline kept) · micro-batches per rank 2 → 4 · ...": what differs in
/// how the run is laid out;
/// "" if nothing does. `same_numbers`: nothing else decides other numbers, neither the devices
/// (Backend::numerics) nor another field; without it nothing is said to have the same bits.
std::string describe_change(const JobSpec& before, const JobSpec& now, bool same_numbers);

/// What the devices of a checkpoint ("": not recorded) and of its continuation mean for the bits, in one
/// line.
std::string describe_numerics(const std::string& before, const std::string& now);

}  // namespace trainctl
