// Supervision decides what one attempt of a run (one epoch) does next, from the events so far. Pure: no
// effects, no clock, no threads; attempt.cpp has the effects.
//
//   starting --all said hello--> running --all done--> finishing --launcher, or every rank, ended--> over
//      |                            |                      |
//      +------ first evidence ------+----------------------+ (10 s)
//      v
//   collecting --evidence_s, or no rank left--> ending (all are killed) --all gone, or kill_limit_s--> over
//
// A stop that takes longer than exit_timeout_s goes to `ending` at once. Evidence is a lost node or
// connection, a crash record, missed heartbeats, a timeout, or the end of a rank or of the launcher (mpirun).
// Evidence that arrives while collecting may give a better first cause. Later evidence is ignored, because
// our own signals cause it. Every input has its time, in monotonic seconds.
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "runtime/run/record/crash_record.h"
#include "runtime/run/record/run_status.h"
#include "runtime/train/control/control.h"
#include "runtime/train/measure/node_ranks.h"

namespace trainctl {

/// A time that does not come.
constexpr double kNever = std::numeric_limits<double>::infinity();

struct RankView {
  using Phase = RankPhase;
  using enum RankPhase;
  Phase phase = absent;
  int pid = 0;
  std::string host;
  std::optional<Activity> activity;  ///< the newest known
  double heard_s = 0;                ///< time of the last message
  double reported_s = 0;             ///< time of the newest message of the rank or report on it
  bool stopped = false;              ///< the process is stopped by SIGSTOP or a debugger
  bool silent = false;               ///< heartbeats were missing at the first evidence
};

/// How an attempt ended.
struct Verdict {
  enum Outcome { finished, stopped, aborted, failed } outcome = finished;
  // For failed:
  ErrorCode code = ErrorCode::kWorker;
  int rank = -1;       ///< the first rank that failed; -1: no particular rank
  int start_node = -1;  ///< index of the attempt's node that could not start its ranks; -1: none
  std::string cause;   ///< one sentence
  std::string effect;  ///< the consequence for the other ranks; "": none
  bool before_first_step = false;
  std::string gave_up;          ///< stopped: why the supervisor gave up the last save; "": it did not
  std::vector<int> lost_nodes;  ///< indices of the attempt's nodes, in the order in which they were lost
};

/// The launcher's report on the first rank that died: "process rank 2 with PID 0 on node n exited on signal
/// 9".
struct DeathNotice {
  int rank = -1, signal = 0, exit_code = 0;
};
/// nullopt if the launcher's output has no such report.
std::optional<DeathNotice> parse_death_notice(const std::string& launcher_text);
/// Why the launcher or MPI failed: the first message of its output that is not about a rank's death; "" if
/// there is none.
std::string launcher_reason(const std::string& launcher_text);
/// "the PMIx server of node3 ended by itself", where a node's agent has said so; or nothing. Its ranks end
/// with it.
std::string pmix_server_end(const std::string& launcher_text);

class Supervision {
 public:
  struct Options {
    int ranks = 1;
    std::vector<NodeRanks> nodes;  ///< empty: all ranks are on this machine, and messages name no node
    bool launcher = true;          ///< true: mpirun starts the ranks; false: their agents do
    int64_t target_step = 0;       ///< the last step of the run; a run stopped before it can be resumed
    double heartbeat_s = 1;
    double step_timeout_s = 600;
    // Longest time without progress outside of training steps.
    double setup_timeout_s = 600, data_timeout_s = 600, load_timeout_s = 600, evaluation_timeout_s = 600,
           save_timeout_s = 600;
    double start_timeout_s = 60;  ///< from the start to every rank's hello
    double evidence_s = 0.3;
    double launcher_evidence_s = 1.5;  ///< longest wait for the launcher to report how a rank died
    double known_evidence_s =
        0.05;  ///< how long to collect if the cause is certain: a crash record, a lost node, a known signal
    double exit_timeout_s = 60;  ///< from a stop request to the end of all ranks; then they are killed
    double kill_limit_s = 8.0;   ///< after SIGKILL; then the attempt is over although processes are left
    double finish_limit_s = 10;  ///< from the last `done` to the end of the launcher
  };
  enum class Phase { starting, running, finishing, collecting, ending, over };
  enum class Action { tell_save_and_stop, look, kill };

  Supervision(const Options& options, double now_s);

  // ---- inputs
  void hello(int rank, int pid, const std::string& host, double now_s);
  /// A message of the rank, or its node's report on it: its last message came there `silent_s` ago. A rank
  /// is silent only if such a report says so: if none comes, the supervisor or the node did not run.
  void heard(int rank, double now_s, double silent_s = 0);
  /// The newest activity of the rank, from a heartbeat, the board or its crash record; nullopt is ignored.
  void activity(int rank, const std::optional<Activity>& activity, double now_s);
  /// Whether the rank's process is stopped by SIGSTOP or a debugger.
  void stopped(int rank, bool is_stopped);
  /// The run made progress: a step, a save or an event. `step`: the newest finished step.
  void progressed(int64_t step, double now_s);
  void done(int rank, double now_s);
  void lost(int rank, const std::optional<CrashRecord>& record, double now_s);
  /// The rank's process has ended; `wait_status` as from waitpid. Only an agent that started the rank reports
  /// this.
  void exited(int rank, int wait_status, const std::optional<CrashRecord>& record, double now_s);
  /// A node is silent, or its agent is gone; its ranks count as lost. `why`: for example "silent for 2.0 s".
  /// `by_own_pause`: it left this supervisor, which had stood still.
  void node_lost(int node, const std::string& why, double now_s, bool by_own_pause = false);
  /// The launcher's output so far. It is no evidence by itself; the verdict uses it to say how a rank died.
  void launcher_output(const std::string& text);
  /// The launcher has ended, or (without one) the start of the ranks on that node has failed; `wait_status`
  /// as from waitpid.
  void launcher_ended(int wait_status, double now_s, int node = -1);
  /// A stop is requested; it may be said again. `left_s`: of exit_timeout_s, if a part of it passed before
  /// this attempt.
  void stop(StopLevel level, double now_s, double left_s = std::numeric_limits<double>::infinity());
  /// The attempt is to save and end, because the next one uses other nodes: without a limit of its time.
  void regroup(double now_s);
  /// No process of this attempt is left.
  void all_gone(double now_s);
  void tick(double now_s);

  // ---- outputs
  std::vector<Action> take_actions();
  /// When tick must be called at the latest.
  double deadline_s() const;
  Phase phase() const { return phase_; }
  StopLevel stop_level() const { return stop_level_; }
  /// When a requested stop must have ended; infinite: there is none.
  double stop_until_s() const { return stop_until_s_; }
  /// Whether the end of the attempt still waits for a checkpoint that is being published, whose file system
  /// has not answered for `quiet_s`. Call it only when over() is true.
  bool waits_for_publishing(double quiet_s, double now_s) const;
  const std::vector<RankView>& ranks() const { return ranks_; }
  int64_t last_step() const { return last_step_; }
  /// The time of the first evidence; nullopt: there was none.
  std::optional<double> first_evidence_s() const { return first_evidence_s_; }
  /// Every rank has said hello; it stays true when one dies.
  bool all_came() const { return all_came_; }
  bool over() const { return phase_ == Phase::over; }
  /// Call it only when over() is true.
  Verdict verdict() const;

 private:
  /// A possible first cause. The evidence with the lowest weight is the first cause; of several, the
  /// earliest.
  struct Evidence {
    enum Weight { explained, node, killed, hang, vanished, peer_lost, launcher } weight = vanished;
    ErrorCode code = ErrorCode::kWorker;
    int rank = -1;
    std::string cause;
    int start_node = -1;  ///< Verdict::start_node
  };
  void add(Evidence evidence, double now_s);
  void check_silence(double now_s);
  void check_progress(double now_s);
  void check_start(double now_s);
  void check_all_here(double now_s);
  void enter(Phase phase, double now_s);
  RankView& at(int rank);
  void raise(StopLevel level, double now_s);
  void check_stop(double now_s);
  bool collecting_is_enough(double now_s) const;
  int count(RankView::Phase phase) const;
  std::string where(int rank) const;
  /// " on node1" if there are several nodes, otherwise "".
  std::string at_node(int rank) const;
  int node_of(int rank) const;
  /// Missed so many heartbeats before `by_s` that this speaks against the rank.
  bool silent_by(const RankView& rank, double by_s) const;
  void note_silence(double now_s);
  bool stands_still(int rank) const;
  /// The longest allowed time without progress, and the field of the spec that sets it.
  struct Patience {
    double limit_s;
    const char* field;
    const char* missed = "nothing moved";  ///< when it has passed
  };
  Patience of_steps() const;
  Patience patience_in(RunPhase phase) const;
  Patience patience() const;
  /// The ranks that are stopped, else those that are silent. If there are none: those that have not started.
  /// If all have: the computing ranks that others wait for. If there are none of these: all computing ranks.
  std::vector<int> culprits(bool with_ended) const;
  std::string suspects() const;
  void describe_death(const DeathNotice& notice, Verdict& verdict) const;
  const Evidence* first_cause() const;
  bool explained() const;

  Options options_;
  Phase phase_ = Phase::starting;
  double entered_s_, started_s_, last_tick_s_, progressed_s_;
  StopLevel stop_level_ = StopLevel::none;
  double stop_until_s_ = std::numeric_limits<double>::infinity();
  std::string gave_up_;  ///< Verdict::gave_up
  std::vector<RankView> ranks_;
  std::vector<Evidence> evidence_;
  std::vector<Action> actions_;
  std::string launcher_text_;
  std::vector<int> lost_nodes_;
  std::optional<double> first_evidence_s_;
  int ended_ = 0;  ///< ranks whose process has ended
  bool launcher_alive_ = true, processes_left_ = true;
  int64_t last_step_ = 0;
  bool stepped_ = false, all_came_ = false;
};

/// True if a relaunch from the newest checkpoint can help: not for mistakes of the user, damaged data or
/// divergence. `stepped`: the attempt has finished a step.
bool worth_restarting(ErrorCode code, bool stepped = false);

}  // namespace trainctl
