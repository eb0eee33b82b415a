// The run directory holds all files of one run, and the lock that allows one supervisor at a time.
//
//   job.json (resolved)  origins.json  run.json (identity)  data.json (fingerprints)  data.files.json (digests)
//   attempt.json (what ranks need)  metrics.jsonl  metrics.ranks.jsonl  metrics.experts.jsonl
//   events.jsonl  status.json  logs/rank-N.log  logs/mpirun.log  ckpt/step-N/  failures/<n>/
//   events.out.tfevents.* (TensorBoard)  trainctl.prom (Prometheus)
//   trace/ (runtime/run/record/trace_request.h)
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/record_fields.h"
#include "runtime/run/record/crash_record.h"
#include "runtime/spec/parse.h"
#include "runtime/train/control/remedies.h"
#include "runtime/train/control/replica_dispute.h"
#include "runtime/train/save/save_interval.h"

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
  std::string prometheus() const { return file("trainctl.prom"); }
  std::string rank_log(int rank) const;
  /// Where checkpoints go: checkpoint.dir, or <run>/ckpt.
  std::string checkpoints(const CheckpointSpec& checkpoint) const {
    return checkpoint.dir.empty() ? file("ckpt") : checkpoint.dir;
  }
};

/// The name of the run's folder. It is the run's id unless the folder was copied or renamed.
std::string folder_name(const RunDirectory& run);
/// The RUN argument that finds this run from the current folder: folder_name if the run lies in
/// $TRAINCTL_RUN_DIR (default: runs), otherwise its path.
std::string command_name(const RunDirectory& run);

/// run.json: the identity of the run. It is replaced when the lineage grows.
struct RunIdentity {
  std::string run_id, spec_hash, program_version;
  std::string numerics;  ///< Backend::numerics of its devices at launch; "": not recorded
  std::string working_directory;
  double created_unix_s = 0;
  std::vector<std::string> command;
  std::string lineage_json = "[]";   ///< see runtime/spec/lineage.h
  std::string parent_checkpoint;     ///< the checkpoint that the run began from; "": none
  std::string to_json() const;
  static RunIdentity from_json(const std::string& text);
  static void fields(auto& f, auto& r) {
    f.written("v", 1);
    f("run_id", r.run_id);
    f("spec_hash", r.spec_hash);
    f("program_version", r.program_version);
    f.later("numerics", r.numerics);
    f("working_directory", r.working_directory);
    f("created", r.created_unix_s);
    f("command", r.command);
    f.later("lineage", as_json(r.lineage_json));
    f.later("parent_checkpoint", r.parent_checkpoint);
  }
};
std::optional<RunIdentity> read_identity(FileSystem& fs, const RunDirectory& run);
/// Why records cannot be written into the run's folder now.
Problem write_problem(FileSystem& fs, const RunDirectory& run);

/// An epoch of the run, and the step from which it began.
struct Beginning {
  uint64_t epoch = 0;
  int64_t step = 0;
  bool operator==(const Beginning&) const = default;
  static void fields(auto& f, auto& r) {
    f("epoch", r.epoch);
    f("step", r.step);
  }
};

/// The state that an attempt loads from the memory of its nodes (ckpt/pieces.h).
struct MemoryState {
  int64_t step = 0;
  uint64_t epoch = 0;
  int ranks = 0;        ///< of the epoch that kept it
  bool whole = false;   ///< the one machine of the run holds all of its pieces
  static void fields(auto& f, auto& r) {
    f("step", r.step);
    f("epoch", r.epoch);
    f("ranks", r.ranks);
    f("whole", r.whole);
  }
};

/// attempt.json: what `trainctl rank` needs in addition to the job. It is replaced for every epoch.
struct AttemptFile {
  uint64_t epoch = 0;
  std::string resume_from;  ///< folder of the checkpoint; "": a fresh start, or `memory`
  bool from_store = false;  ///< `resume_from` was copied from checkpoint.store for this attempt
  std::string resume_manifest;        ///< SHA-256 of the manifest of `resume_from`; "": its COMMIT says it
  std::optional<MemoryState> memory;  ///< the state to load from memory
  int64_t max_steps = 0;    ///< the run saves and ends after this step; 0: after the job's last step
  bool new_data = false;    ///< read the data from their start, not from the position in `resume_from`
  std::string lineage_json = "[]";
  int threads_per_rank = 0;  ///< the value chosen for `auto` at launch or resume; 0: use the spec's value
  double matmul_flops_per_s = 0;       ///< the peak that mfu is computed from
  std::vector<std::string> overrides;  ///< PATH=VALUE changes of the spec for this attempt's width
  std::vector<SaveHistory> saves;      ///< what earlier attempts tell about each tier
  // Where the attempt runs, for a supervisor that takes it over.
  struct Node {
    std::string name;
    int first = 0, count = 0;  ///< its ranks: first .. first + count - 1
    static void fields(auto& f, auto& r) {
      f("name", r.name);
      f("first", r.first);
      f("count", r.count);
    }
  };
  std::vector<Node> nodes;
  std::string mark;  ///< value of kAttemptVariable in the environment of the attempt's processes
  bool pmix = false;
  std::string session_folder, shared_memory_folder;
  /// The first epoch, and those that no later one went back behind; ascending. What an older epoch kept of
  /// later steps is no part of the run any more.
  std::vector<Beginning> beginnings;
  Remedies remedies;  ///< what was decided about the run's loss: samples left out, a lower rate
  std::vector<ReplicaDispute> disputes;  ///< of replicas, which are settled when their step is computed again
  std::vector<std::string> burn_in;      ///< nodes that are tested before the first step (launcher.burn_in)
  std::string to_json() const;
  static AttemptFile from_json(const std::string& text);
  static void fields(auto& f, auto& r) {
    f.written("v", 1);
    f("epoch", r.epoch);
    f("resume_from", r.resume_from);
    f.when(r.from_store, "from_store", r.from_store);
    f.when(!r.resume_manifest.empty(), "resume_manifest", r.resume_manifest);
    f("max_steps", r.max_steps);
    f("new_data", r.new_data);
    f("lineage", r.lineage_json);
    f("threads_per_rank", r.threads_per_rank);
    f("matmul_flops_per_s", r.matmul_flops_per_s);
    f.later("overrides", r.overrides);
    f.when(!r.saves.empty(), "saves", r.saves);
    f.later("nodes", r.nodes);
    f.later("mark", r.mark);
    f.later("pmix", r.pmix);
    f.later("session_folder", r.session_folder);
    f.later("shared_memory_folder", r.shared_memory_folder);
    f.maybe("memory", r.memory);
    f.when(!r.beginnings.empty(), "beginnings", r.beginnings);
    f.when(!r.remedies.empty(), "remedies", r.remedies);
    f.when(!r.disputes.empty(), "disputes", r.disputes);
    f.when(!r.burn_in.empty(), "burn_in", r.burn_in);
  }
};

/// A new id name-XXXX with four random letters and digits; `root` has no such folder yet.
std::string new_run_id(FileSystem& fs, const std::string& root, const std::string& name);

/// The ids of the runs in the folder `root`, sorted; empty if there is no such folder.
std::vector<std::string> run_ids(FileSystem& fs, const std::string& root);

/// Makes the directory and its files. The caller holds the lock.
void create_run(FileSystem& fs, const RunDirectory& run, const RunIdentity& identity, const ParsedJob& job,
                const std::string& data_json);

/// Finds the run for a RUN argument: a path, an id in `root` or a unique prefix of one, `latest`, or the path
/// of a checkpoint (then `step` is set). Error(kUsage) with one sentence if no run or more than one matches.
struct FoundRun {
  RunDirectory run;
  std::optional<int64_t> step;
};
FoundRun find_run(FileSystem& fs, const std::string& name, const std::string& root);

/// The lock of a run; its one supervisor holds it. It is a kernel lock (flock), which the kernel releases
/// when the process ends. On file systems without flock (Lustre without -o flock, some FUSE mounts) it is the
/// symbolic link supervisor.owner, which is created atomically and names its owner. try_take replaces the
/// link of a process that has ended on this machine. For a link of another machine or container it throws
/// Error(kPreflight), because it cannot see whether that process lives; then a person must remove the link.
class RunLock {
 public:
  /// nullopt if another process holds the lock. Error(kPreflight) if the lock cannot be written.
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
  /// A note for the user, one sentence, where the lock is a symbolic link; "" for flock.
  const std::string& note() const { return note_; }
  /// The previous holder, "pid 12 on node0"; "" if it is not known.
  const std::string& before() const { return before_; }
  /// Reads the owner of the lock again. A process that was stopped or cut off from the file server may have
  /// lost the lock, because a server passes it on when a lease ends. Throws RunTaken if another process took
  /// it. Returns if the lock cannot be read. Safe from any thread.
  void must_hold() const { check()(); }
  /// must_hold() as a function that needs no object: for a thread that a hanging disk may keep for longer
  /// than the lock lives.
  std::function<void()> check() const;

 private:
  RunLock(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_, owner_, before_, link_, note_;
};

/// Another supervisor has taken the run. This process must not publish, write, order or end anything of the
/// run any more.
class RunTaken : public Error {
 public:
  using Error::Error;
};

/// The process that supervises a run.
struct SupervisorPlace {
  std::string host;   ///< "" if not known
  int pid = 0;        ///< 0 if not known
  bool here = false;  ///< runs on this machine; pid, start time and boot id were compared
};
/// nullopt if no supervisor holds the lock.
std::optional<SupervisorPlace> supervisor_place(FileSystem& fs, const RunDirectory& run);
/// The pid of the supervisor if it runs on this machine.
std::optional<int> supervisor_of(FileSystem& fs, const RunDirectory& run);

/// Moves the crash records and rings into the new folder failures/<n>/ (n counts from 1), adds verdict.json
/// and the ends of the logs of `rank` (-1: none), rank 0 and mpirun, and returns the folder.
std::string collect_failure(FileSystem& fs, const RunDirectory& run, const std::string& verdict_json, int rank,
                            int ranks);

}  // namespace trainctl
