// `launch --submit`: a run whose supervisor Slurm starts. The run directory is made here, with the script of
// the job in it; the job's nodes go on with it by `trainctl resume RUN --in-allocation`.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervise/slurm/jobset.h"
#include "runtime/supervise/start/launch.h"
#include "runtime/supervise/slurm/slurm_script.h"

namespace trainctl {

/// slurm.json of a run: the jobs that were submitted for it.
struct SlurmRecord {
  std::vector<std::string> jobs;  ///< ids, in the order in which they run
  std::string name;               ///< that the jobs of a chain wait for each other by
  bool chain = false;             ///< several jobs, one after another
  bool requeue = true;            ///< the one job gives itself back to the queue when its time is over
  std::string to_json() const;
};
/// Nothing: the run was not submitted. Error(kIo): the file is damaged.
std::optional<SlurmRecord> read_slurm_record(FileSystem& fs, const RunDirectory& run);

/// What the job asks Slurm for; nodes are counted where the spec gives none. Error(kSpec) where they cannot
/// be.
SlurmRequest slurm_request(const JobSpec& job, const std::string& run_id, int chain,
                           std::vector<std::string> exclude);

struct SubmitRequest {
  ParsedJob job;
  std::string program;
  std::vector<std::string> command;  ///< as typed, for run.json
  int chain = 1;                     ///< jobs, one after another
};
struct Submitted {
  RunDirectory run;
  std::string id, script;
  SlurmRecord record;  ///< without jobs where nothing was submitted
};
/// The script that would be submitted; nothing is written.
Submitted preview_submit(const SubmitRequest& request, FileSystem& fs, Clock& clock);
/// Makes the run, or takes the one of that id if it is the same job and nothing supervises it, and submits.
/// Error(kLauncher): Slurm refused; Error(kUsage): the run is running, or waits in the queue already.
Submitted submit_run(const SubmitRequest& request, FileSystem& fs, Clock& clock);

/// `launch --manifest k8s`: the run whose supervisor and agents a JobSet starts.
struct ManifestRequest {
  SubmitRequest submit;
  PodRequest pods;
};
struct Manifest {
  RunDirectory run;
  std::string id, text;  ///< for `kubectl apply -f -`
};
/// What would be written; nothing is.
Manifest preview_manifest(const ManifestRequest& request, FileSystem& fs);
/// Makes the run, or takes the one of that id if it is the same job, with launcher.hosts, shell, port and
/// slots as the set needs them, and jobset.yaml in it. Error(kUsage): fields that cannot be carried over, or
/// the run is running.
Manifest write_manifest(const ManifestRequest& request, FileSystem& fs, Clock& clock);

/// "job 12 is PENDING (Resources)", a line a job that Slurm still knows; nothing where Slurm does not answer.
std::vector<std::string> queue_lines(const SlurmRecord& record);

/// Cancels what of it waits in the queue, so that nothing goes on with the run. How many jobs that were.
int cancel_queued(const SlurmRecord& record);

}  // namespace trainctl
