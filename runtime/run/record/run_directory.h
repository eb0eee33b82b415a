// The run directory: everything that one run leaves, and the lock that gives it one supervisor at a time.
//
//   job.json (resolved)  origins.json  data.json (fingerprints)  run.json (identity)
//   attempt.json (what ranks need)  metrics.jsonl  metrics.ranks.jsonl  events.jsonl  status.json
//   logs/rank-N.log  logs/mpirun.log  ckpt/step-N/  failures/<n>/
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/spec/parse.h"

namespace trainctl {

/// Paths; pure.
struct RunDirectory {
  std::string path;  ///< absolute
  std::string file(const char* name) const { return path + "/" + name; }
  std::string job() const { return file("job.json"); }
  std::string metrics() const { return file("metrics.jsonl"); }
  std::string events() const { return file("events.jsonl"); }
  std::string status() const { return file("status.json"); }
  std::string attempt() const { return file("attempt.json"); }
  std::string rank_log(int rank) const;
  /// Where checkpoints go: checkpoint.dir, or <run>/ckpt.
  std::string checkpoints(const JobSpec& job) const {
    return job.checkpoint.dir.empty() ? file("ckpt") : job.checkpoint.dir;
  }
};

/// The name of its folder: the run's id, unless the folder was copied or renamed.
std::string folder_name(const RunDirectory& run);
/// How commands find the run from here: the name of its folder where it lies in the folder of runs ($TRAINCTL_RUN_DIR, else runs), its path
/// otherwise.
std::string command_name(const RunDirectory& run);

/// run.json: who this run is; replaced when its lineage grows.
struct RunIdentity {
  std::string run_id, spec_hash, program_version;
  std::string numerics;  ///< of its devices when it was launched; "": not recorded
  std::string working_directory;
  double created_unix_s = 0;
  std::vector<std::string> command;
  std::string lineage_json = "[]";   ///< see runtime/spec/lineage.h
  std::string parent_checkpoint;     ///< that it began from, "" if from none
  std::string to_json() const;
  static RunIdentity from_json(const std::string& text);
};
std::optional<RunIdentity> read_identity(FileSystem& fs, const RunDirectory& run);

/// attempt.json: what `trainctl rank` needs in addition to the job; replaced for every epoch.
struct AttemptFile {
  uint64_t epoch = 0;
  std::string resume_from;
  int64_t max_steps = 0;
  bool new_data = false;  ///< the data begin at their start, not where `resume_from` stopped
  std::string lineage_json = "[]";
  int threads_per_rank = 0;  ///< what `auto` came to when the run was launched or resumed; 0: as the spec says
  double matmul_flops_per_s = 0;
  std::vector<std::string> overrides;  ///< of the spec in this attempt: a width that fits the nodes there are
  // Where it runs, for a supervisor that takes it over.
  struct Node {
    std::string name;
    int first = 0, count = 0;  ///< its ranks
  };
  std::vector<Node> nodes;
  std::string mark;  ///< in the environment of its processes
  bool pmix = false;
  std::string session_folder, shared_memory_folder;
  std::string to_json() const;
  static AttemptFile from_json(const std::string& text);
};

/// name-XXXX, with four random letters and digits that are not in use in `root`.
std::string new_run_id(FileSystem& fs, const std::string& root, const std::string& name);

/// Makes the directory and its files. The lock must be held.
void create_run(FileSystem& fs, const RunDirectory& run, const RunIdentity& identity, const ParsedJob& job,
                const std::string& data_json);

/// The run that RUN means: a path, an id or unique prefix of one in `root`, `latest`, or a checkpoint's path
/// (then `step` is set). Error(kUsage) with one sentence if there is none, or more than one.
struct FoundRun {
  RunDirectory run;
  std::optional<int64_t> step;
};
FoundRun find_run(FileSystem& fs, const std::string& name, const std::string& root);

/// Held by the one supervisor of a run. A lock of the kernel (flock), which gives it back when the process ends, however it
/// ends. Where the file system has none (Lustre without -o flock, some FUSE mounts), the symbolic link supervisor.owner, which
/// is made in one step and names its owner. A link whose owner is seen to be gone is taken over; one of another machine or
/// container is Error(kPreflight), for a person to decide: that is the price of having no flock.
class RunLock {
 public:
  /// Nothing if another process holds it.
  static std::optional<RunLock> try_take(const RunDirectory& run);
  RunLock(RunLock&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        path_(std::move(other.path_)),
        owner_(std::move(other.owner_)),
        before_(std::move(other.before_)),
        link_(std::move(other.link_)),
        note_(std::move(other.note_)) {}
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();
  /// What the user should know of it; "" for an ordinary lock.
  const std::string& note() const { return note_; }
  /// Who held it before, "pid 12 on node0"; "" if that is not known.
  const std::string& before() const { return before_; }
  /// Looks at the lock again. A process that was stopped or cut off from the disk may have lost it: a server
  /// gives it to another process when it has heard nothing for its lease. RunTaken if another one took it; a
  /// lock that cannot be read says nothing. Safe from any thread.
  void must_hold() const;

 private:
  RunLock(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_, owner_, before_, link_, note_;
};

/// Another supervisor has taken the run: this process may publish, write, order and end nothing of it.
class RunTaken : public Error {
 public:
  using Error::Error;
};

/// Where the supervisor of a run is.
struct SupervisorPlace {
  std::string host;   ///< "" if not known
  int pid = 0;        ///< 0 if not known
  bool here = false;  ///< on this machine and visible, checked to be really that process (pid, start time, boot)
};
/// Nothing if no supervisor holds the lock.
std::optional<SupervisorPlace> supervisor_place(FileSystem& fs, const RunDirectory& run);
/// Its pid if it is here.
std::optional<int> supervisor_of(FileSystem& fs, const RunDirectory& run);

/// Moves the crash records and what belongs to them into failures/<n>/ (n counts from 1) and returns that
/// folder.
std::string collect_failure(FileSystem& fs, const RunDirectory& run, const std::string& verdict_json, int rank,
                            int ranks);

}  // namespace trainctl
