// `launch --submit`: makes the run directory with a batch script and submits the script to Slurm. The Slurm
// job then calls `trainctl resume RUN --in-allocation`.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervise/jobset/jobset.h"
#include "runtime/supervise/start/launch.h"
#include "runtime/supervise/slurm/slurm_script.h"

namespace trainctl {

/// slurm.json of a run: the Slurm jobs that were submitted for it.
struct SlurmRecord {
  std::vector<std::string> jobs;  ///< ids, in the order in which they run
  std::string name;               ///< their common name; jobs with one name run one after another
  bool chain = false;             ///< there are several jobs
  bool requeue = true;            ///< a single job requeues itself when its time is over
  std::string to_json() const;
  static void fields(auto& f, auto& r) {
    f("jobs", r.jobs);
    f("name", r.name);
    f("chain", r.chain);
    f("requeue", r.requeue);
  }
};
/// nullopt if the run was not submitted. Error(kIo) if the file is damaged.
std::optional<SlurmRecord> read_slurm_record(FileSystem& fs, const RunDirectory& run);

/// The request to Slurm for the job. Computes the number of nodes if the spec gives none; Error(kSpec) if
/// that is not possible.
SlurmRequest slurm_request(const NodeNeed& need, const std::string& run_id, int chain,
                           std::vector<std::string> exclude);

struct SubmitRequest {
  ParsedJob job;
  std::string program;
  std::vector<std::string> command;  ///< as typed, for run.json
  int chain = 1;                     ///< number of Slurm jobs, which run one after another
};
struct Submitted {
  RunDirectory run;
  std::string id, script;
  SlurmRecord record;  ///< has no jobs if nothing was submitted
};
/// The script that submit_run would submit. Writes nothing.
Submitted preview_submit(const SubmitRequest& request, FileSystem& fs, Clock& clock);
/// Makes the run, or uses the run with that id if it is the same job and has no supervisor, and submits its
/// script. Error(kLauncher): Slurm refused. Error(kUsage): the run is running or waits in the queue.
Submitted submit_run(const SubmitRequest& request, FileSystem& fs, Clock& clock);

/// `trainctl manifest`: a run whose supervisor and agents are started by a JobSet.
struct ManifestRequest {
  SubmitRequest submit;
  PodRequest pods;
};
struct Manifest {
  RunDirectory run;
  std::string id, text;  ///< for `kubectl apply -f -`
};
/// The manifest that write_manifest would make. Writes nothing.
Manifest preview_manifest(const ManifestRequest& request, FileSystem& fs);
/// Makes the run, or uses the run with that id if it is the same job. Sets launcher.hosts, shell, port and
/// slots as the JobSet needs them and writes jobset.yaml into the run. Error(kUsage): the request has fields
/// that Kubernetes does not have, or the run is running.
Manifest write_manifest(const ManifestRequest& request, FileSystem& fs, Clock& clock);

/// One line for each job that Slurm still knows: "job 12 is PENDING (Resources)". Empty if Slurm does not
/// answer.
std::vector<std::string> queue_lines(const SlurmRecord& record);

/// Cancels the jobs that wait in the queue, so that none of them resumes the run. Returns their number.
/// Error(kLauncher).
int cancel_queued(const SlurmRecord& record);

}  // namespace trainctl
