// `launch` and `resume`: all steps from a checked job spec to the supervisor.
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
  Remedies remedies;                ///< of a run whose steps are computed again
  bool requeue = false;  ///< requeue the Slurm job of this process when the scheduler wants the run to stop
};

/// What a launch would do, for --dry-run. Nothing is written or started.
struct LaunchPreview {
  std::string run_directory;
  std::vector<std::string> files;  ///< files that a launch would make
  std::string branch;              ///< the checkpoint to begin from, and the changes; "" without --from
  std::string memory;              ///< "1.2 GiB needed, 8.0 GiB available"
  std::string copies_note;         ///< Preflight::copies_note
  std::string placement;           ///< which nodes run how many ranks; "" on one machine
  std::string agents;              ///< the command that starts an agent on a node; "" on one machine
  /// mpirun's command line with its environment, for a shell. Not used when the agents start the ranks
  /// through PMIx.
  std::string command;
};
LaunchPreview preview_launch(const LaunchRequest& request, FileSystem& fs);

/// Starts a new run, or continues the run with that id if it is the same job. Throws Error (preflight, data,
/// a run of another job) only if nothing was started.
RunResult launch_run(const LaunchRequest& request, FileSystem& fs, Clock& clock, Console& console);

struct ResumeRequest {
  RunDirectory run;
  ParsedJob before;  ///< the run's job.json
  ParsedJob now;     ///< with the overrides
  std::string program;
  std::optional<int64_t> step;  ///< use this checkpoint and no other; nullopt: the newest usable one
  bool from_scratch = false;    ///< begin where the run began, whatever was saved; without `step`
  int64_t max_steps = 0;
  bool requeue = false;  ///< as in LaunchRequest
  std::string chain;     ///< name of the Slurm jobs that wait for the end of this one; "": none
  /// Why this process replaces a supervisor that died, one sentence; "": a person resumes the run.
  std::string take_over;
};
/// Continues a run. Error(kCheckpoint): the requested checkpoint is missing or unusable, or the run saved
/// some and none can be found. Error(kData): the data have changed.
RunResult resume_run(const ResumeRequest& request, FileSystem& fs, Clock& clock, Console& console);

/// The overrides of a resume. Adds parallelism.world_size if the overrides change factors of the mesh but not
/// world_size, and the run's world_size does not equal their product.
std::vector<std::string> with_world_size(const ParsedJob& before, std::vector<std::string> overrides);

/// The change of the layout: "8 → 4 ranks: data 4 → 2 (tensor, pipeline kept) · micro-batches per rank 2 → 4
/// · ..."; "" if nothing changes. `same_numbers`: devices (Backend::numerics) and all other fields give the
/// same numbers; if false, the text never promises the same bits.
std::string describe_change(const JobSpec& before, const JobSpec& now, bool same_numbers);
/// What becomes of the decay of `wsd` where a resume changes only the length of the run; "": nothing.
std::string describe_decay(const ScheduleSpec& before, const ScheduleSpec& now);

/// One line: whether the continuation has the same bits, from the numerics of a checkpoint ("": not recorded)
/// and of the current devices.
std::string describe_numerics(const std::string& before, const std::string& now);

}  // namespace trainctl
