// The state of a run at one moment: status.json. The supervisor rewrites it about once a second and at every
// change of state.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/activity.h"
#include "runtime/base/file_system.h"
#include "runtime/base/problem.h"
#include "runtime/base/record_fields.h"
#include "runtime/base/words.h"
#include "runtime/machine/node_facts.h"
#include "runtime/train/measure/step_line.h"
#include "runtime/train/save/save_interval.h"

namespace trainctl {

/// The phase of a rank, as the supervisor knows it.
enum class RankPhase { absent, present, done, lost };
template <>
struct Words<RankPhase> {
  static constexpr std::string_view list[] = {"absent", "present", "done", "lost"};
};

struct RankStatus {
  int rank = 0, pid = 0;
  RankPhase phase = RankPhase::absent;
  std::string host;
  std::optional<Activity> activity;  ///< the newest known
  bool stopped = false;              ///< stopped by SIGSTOP or a debugger
  double heard_unix_s = 0;           ///< time of the last message; 0: none yet
  static void fields(auto& f, auto& r) {
    f("rank", r.rank);
    f("pid", r.pid);
    f("phase", r.phase);
    f("host", r.host);
    f.later("activity", r.activity);
    f.written("doing", r.activity ? render(*r.activity) : "");
    f.later("stopped", r.stopped);
    f("heard", r.heard_unix_s);
  }
};

/// The supervisor reports a node whose clock differs by more than this from its own.
inline constexpr double kClocksApartS = 1;

enum class NodeState { absent, running, spare, lost, quarantined };
template <>
struct Words<NodeState> {
  static constexpr std::string_view list[] = {"absent", "running", "spare", "lost", "quarantined"};
};

/// A node of a run on several nodes.
struct NodeStatus {
  std::string name;
  NodeState state = NodeState::absent;
  std::string reason;        ///< why it was lost
  int first = 0, count = 0;  ///< its ranks in this epoch
  double heard_unix_s = 0;   ///< time of its agent's last message; 0: none
  double since_unix_s = 0;   ///< when it entered this state
  NodeFacts facts;           ///< from its newest agent
  NodeUsage usage;
  std::optional<double> clock_offset_s;  ///< node's clock minus supervisor's clock, at its agent's hello
  static void fields(auto& f, auto& r) {
    f("name", r.name);
    f("state", r.state);
    f("reason", r.reason);
    f("first_rank", r.first);
    f("ranks", r.count);
    f("heard", r.heard_unix_s);
    f("since", r.since_unix_s);
    f.later("facts", r.facts);
    f.later("usage", r.usage);
    f.maybe("clock_offset_s", r.clock_offset_s);
  }
};

/// `waiting`: the run waits for nodes. `paused`: the run has reached the requested last step (--max-steps),
/// which is not the last step of the schedule.
enum class RunState {
  submitted, starting, running, stopping, ending, restarting, waiting,
  finished, paused, stopped, aborted, failed,
};
template <>
struct Words<RunState> {
  static constexpr std::string_view list[] = {"submitted", "starting",   "running", "stopping",
                                              "ending",    "restarting", "waiting", "finished",
                                              "paused",    "stopped",    "aborted", "failed"};
};

struct RunStatus {
  std::string run_id, directory;
  RunState state = RunState::starting;
  uint64_t epoch = 0;
  int restarts = 0, exit_code = -1;  ///< exit_code -1: the run has not ended
  int64_t step = 0, total_steps = 0, saved_step = -1;
  /// The newest step of which all ranks hold their part in memory, that was read again with every byte good,
  /// and that was copied to checkpoint.store; -1: none.
  int64_t staged_step = -1, verified_step = -1, uploaded_step = -1;
  /// Only if the newest verified checkpoint holds a NaN or an infinity: the newest that does not, -1: none.
  std::optional<int64_t> finite_step;
  /// The newest step of which all ranks have second copies on other nodes, and the number of the nodes that
  /// hold them; -1: none.
  int64_t partner_step = -1;
  int partner_nodes = 0;
  std::string store;  ///< where copies of the checkpoints go; "": nowhere
  double started_unix_s = 0, updated_unix_s = 0, step_unix_s = 0;  ///< step_unix_s: when the last step ended
  double heartbeat_s = 1, step_timeout_s = 600;
  StepLine last_step;                 ///< the last line of metrics; its step is 0: there is none
  std::vector<TaskScore> tasks;       ///< the newest scores (eval.tasks), after step tasks_step
  int64_t tasks_step = 0;
  std::string lineage_json = "[]";    ///< see runtime/spec/lineage.h
  std::string reason;                 ///< why the run ended, or restarted last
  std::string advice;                 ///< the next command for the user
  std::string loss_trouble;           ///< the newest that the loss monitor found, one sentence; "": none
  int64_t rollbacks = 0, skipped_samples = 0;  ///< of the run, for its loss
  std::vector<SaveInterval> save_intervals;  ///< the newest of each tier; empty: none is known yet
  std::vector<NodeStatus> nodes;  ///< empty: the run uses this machine alone
  std::vector<RankStatus> ranks;

  bool ended() const { return exit_code >= 0; }
  /// `with_ranks` false: leaves out the ranks, which write_status then puts into a file of their own.
  std::string to_json(bool with_ranks = true) const;
  static RunStatus from_json(const std::string& text);  ///< Error(kIo) if `text` is not a status
  static void fields(auto& f, auto& r) {
    fields_but_ranks(f, r);
    f("ranks", r.ranks);
  }
  static void fields_but_ranks(auto& f, auto& r) {
    f.written("v", 1);
    f("run_id", r.run_id);
    f("directory", r.directory);
    f("state", r.state);
    f("epoch", r.epoch);
    f("restarts", r.restarts);
    f("exit_code", r.exit_code);
    f("step", r.step);
    f("total_steps", r.total_steps);
    f("saved_step", r.saved_step);
    f.when(r.staged_step >= 0, "staged_step", r.staged_step);
    f.when(r.partner_step >= 0, "partner_step", r.partner_step);
    f.when(r.partner_step >= 0, "partner_nodes", r.partner_nodes);
    f.when(r.verified_step >= 0, "verified_step", r.verified_step);
    f.when(r.uploaded_step >= 0, "uploaded_step", r.uploaded_step);
    f.maybe("finite_step", r.finite_step);
    f.when(!r.store.empty(), "store", r.store);
    f("started", r.started_unix_s);
    f("updated", r.updated_unix_s);
    f("step_ended", r.step_unix_s);
    f("heartbeat_s", r.heartbeat_s);
    f("step_timeout_s", r.step_timeout_s);
    f("last_step", as_view(r.last_step));   // also of an older version
    f.when(!r.tasks.empty(), "tasks", r.tasks);
    f.when(!r.tasks.empty(), "tasks_step", r.tasks_step);
    f.later("lineage", as_json(r.lineage_json));
    f("reason", r.reason);
    f("advice", r.advice);
    f.when(!r.loss_trouble.empty(), "loss_trouble", r.loss_trouble);
    f.when(r.rollbacks > 0, "rollbacks", r.rollbacks);
    f.when(r.skipped_samples > 0, "skipped_samples", r.skipped_samples);
    f.when(!r.save_intervals.empty(), "save_intervals", r.save_intervals);
    f.later("nodes", r.nodes);
  }
};

/// With more ranks than this, write_status writes them to ranks.json in the same folder, and the supervisor
/// does so only every kRanksIntervalS. So no work that happens every second grows with the number of ranks.
inline constexpr size_t kMostRanksInStatus = 256;
inline constexpr double kRanksIntervalS = 15;

/// Replaces the file by one rename, without a sync: for a view, which can be made again.
void replace_view(FileSystem& fs, const std::string& path, const std::string& text);
/// Replaces the file in that way.
void write_status(FileSystem& fs, const std::string& path, const RunStatus& status, bool with_ranks = true);
std::optional<RunStatus> read_status(FileSystem& fs, const std::string& path);
struct TriedStatus {
  std::optional<RunStatus> status;
  Problem problem = Problem::none();  ///< why the file, which exists, cannot be used
};
/// As read_status, for what can be done without the status: no Error.
TriedStatus try_read_status(FileSystem& fs, const std::string& path);

/// The status as read from `directory`. If the folder was copied or renamed since it was written, run_id,
/// directory and the advised command are changed to those of `directory`.
RunStatus found_in(RunStatus status, const std::string& directory);

}  // namespace trainctl
