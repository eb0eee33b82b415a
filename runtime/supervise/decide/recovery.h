// Recovery decides what happens between the attempts of a run: whether and when the next attempt starts, and
// on which nodes. Pure.
//
//                     +----- Wait: nodes are being started, or too few live ------+
//                     v                                                           |
//   choosing --next(): FindCheckpoint, StartAttempt--attempt_started--> running   |
//      |  ^                                                               |       |
//      |  +------- attempt_ended: regrouped, or failed and worth it ------+       |
//      |                                                                  |
//      +-- too few nodes, no checkpoint, a stop --> over (StopRun,  <-----+ finished, stopped, aborted,
//                                                   RequeueJob)             hopeless, no restart left, crash
//                                                   loop
//
// Nodes. Nodes have an order. An attempt uses the first nodes whose slots carry the largest possible width. A
// node that stays keeps its place, so that its ranks stay where their checkpoint memory is. The first spare
// gets the place of a lost node. A node that returns goes to the end of the order. If no spare is left, the
// next attempt has the largest width that the other nodes carry.
//
// Restarts. Only a failure of a rank counts as a restart (max_restarts). A lost node does not. A checkpoint
// that cannot be loaded does not either; then the next older one is used. A state in memory that cannot be
// loaded, or not on the nodes of the next attempt, is not asked for again.
//
// Crash loops. An attempt makes progress if it finishes a step beyond the newest step of all attempts, or
// saves a checkpoint newer than the one it began from. Three attempts in a row (loop_limit) without progress
// that failed alike (same code, same newest step, same place) are a crash loop and end the run. So do nine in
// a row without progress that failed differently. A node on which failures repeat is put into quarantine if
// the other nodes can carry the run.
//
// Every input has its time, in monotonic seconds. No effects, no clock, no threads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/supervise/decide/source.h"
#include "runtime/train/control/control.h"

namespace trainctl {

/// A data-parallel width that the run may have.
struct Width {
  int data = 1;   ///< replicas
  int ranks = 1;  ///< of the whole mesh
};

struct PoolNode {
  std::string name;
  int slots = 0;
  enum State { coming, ready, lost } state = coming;  ///< coming: its agent is being started
  bool quarantined = false;
  bool put_out = false;          ///< quarantined by this run
  double since_s = 0;            ///< when it entered this state
  std::string why;               ///< why it was lost
  int place = -1;                ///< index in the nodes of the current or last attempt; -1: not one of them
  bool member = false;           ///< a node of the current attempt
  std::vector<double> failures;  ///< times of its newest failures
};

/// How an attempt ended, from its Verdict.
struct AttemptEnd {
  enum How { finished, stopped, regrouped, aborted, failed } how = finished;
  // For failed:
  ErrorCode code = ErrorCode::kWorker;
  std::string cause;  ///< one sentence
  int rank = -1;      ///< the first rank that failed; -1: no particular rank
  std::string node;   ///< the node of that rank; "": no particular node
};

/// Decision: begin the next epoch on these nodes, in the order of their ranks.
struct StartAttempt {
  std::vector<std::string> nodes;
  Width width;
  std::optional<int64_t>
      /// The checkpoint; nullopt: begin where the run began (step 0 or another run's checkpoint)
      step;
  std::string why;  ///< one sentence for people; "" for the first attempt
  std::optional<StateId> in_memory;  ///< the state of `step` is in memory
};
/// Decision: find the newest usable state of the run whose step is at most `at_most` (nullopt: any step),
/// other than the `refused` ones in memory, then call checkpoint_found or no_checkpoint.
struct FindCheckpoint {
  std::optional<int64_t> at_most;
  std::vector<StateId> refused;
};
/// Decision: call next() again at `until_s` or after any input. `until_s` is infinity while an attempt runs.
struct Wait {
  double until_s = 0;
  std::string why;
};
/// Decision: give the allocation back so that the scheduler starts the job again; exit status 75.
struct RequeueJob {
  std::string why;
};
/// Decision: end the run.
struct StopRun {
  int exit_code = 0;
  std::string why;
};
using Decision = std::variant<StartAttempt, FindCheckpoint, Wait, RequeueJob, StopRun>;

class Recovery {
 public:
  enum class TooFew { wait, requeue, stop };
  struct Options {
    std::vector<Width> widths;  ///< largest first, at least one
    int tensor = 1;  ///< so many consecutive ranks share a node (the size of a tensor group); 1: no such rule
    std::vector<std::string> nodes;    ///< names in order; all begin in state coming
    std::optional<int64_t> from_step;  ///< step of the run's own checkpoint to begin from
    std::optional<StateId> from_memory;  ///< that state is in memory; from_step is its step
    bool step_fixed = false;           ///< the user named that step: use no other checkpoint
    int max_restarts = 0;
    int loop_limit = 3;             ///< attempts in a row that fail alike without progress and end the run
    TooFew too_few = TooFew::wait;  ///< what to do if not even the smallest width fits
    double wait_limit_s = 600;      ///< for TooFew::wait; then exit 75
    double gather_limit_s =
        60;  ///< longest wait for nodes that are being started, before the first attempt or if no width fits
    double rejoin_limit_s = 1;  ///< longest wait for such nodes if a smaller width fits already
    double settle_s = 5;        ///< a returned node must stay ready so long before an attempt is ended for it
    QuarantineRules quarantine;
  };
  /// The reason to end a running attempt after a save.
  enum class Regroup { none, wider, without_quarantined };
  friend std::string text_of(Regroup regroup);  ///< one sentence; "" for none

  Recovery(Options options, double now_s);

  // ---- inputs
  void node_coming(const std::string& name, double now_s);
  void node_ready(const std::string& name, int slots, double now_s);
  void node_lost(const std::string& name, const std::string& why, double now_s);
  /// Excludes the node from later attempts, or (false) allows it again. The current attempt keeps the node.
  /// `by_this_run`: failures of this run put the node out; the run uses it again if no width fits without it.
  void set_quarantined(const std::string& name, bool quarantined, bool by_this_run = false);
  /// `start`: the decision of next(), or an attempt that another supervisor has started, once its nodes are
  /// ready.
  void attempt_started(const StartAttempt& start, double now_s);
  void progressed(int64_t step);  ///< the attempt has finished this step
  void saved(int64_t step);       ///< a checkpoint of the run was published
  void attempt_ended(const AttemptEnd& end, double now_s);
  /// `in_memory`: the state is there, not in a checkpoint.
  void checkpoint_found(int64_t step, std::optional<StateId> in_memory = {});
  /// The ranks of the attempt that was to be started do not reach that state in memory.
  void memory_out_of_reach();
  /// `skipped`: the number of checkpoints that exist but are not usable.
  void no_checkpoint(int skipped);
  void stop(StopLevel level);

  // ---- outputs
  /// The next decision. It stays the same until an input comes or the time of Wait has passed.
  Decision next(double now_s);
  /// Whether the current attempt should save and end, so that the next is wider or does without a quarantined
  /// node.
  Regroup regroup(double now_s) const;
  /// The nodes that failures of this run put into quarantine and without which the run then made progress,
  /// since the last call. The caller adds them to the quarantine list.
  std::vector<std::string> take_quarantined();
  const std::vector<PoolNode>& pool() const { return pool_; }
  int restarts() const { return restarts_; }
  bool running() const { return running_; }
  bool over() const { return over_.has_value(); }

 private:
  struct Failure {
    ErrorCode code;
    int64_t step;
    bool stepped, lost;
    int rank;
    std::string node;
  };
  PoolNode& node(const std::string& name, double now_s);
  int ranks_on(const PoolNode& node) const;
  const Width* widest(int ranks) const;
  std::vector<const PoolNode*> select(int ranks) const;
  StartAttempt start(const Width& width) const;
  void pardon_if_needed();
  Decision too_few(double now_s, int ranks);
  Decision end(Decision decision);
  void failed(const AttemptEnd& end, double now_s);
  void count_idle(const Failure& failure);
  void note_progress();
  void blame(PoolNode& node, double now_s);

  Options options_;
  std::vector<PoolNode> pool_;
  StopLevel stop_ = StopLevel::none;
  std::optional<Decision> over_;
  // The current or last attempt.
  bool running_ = false, ever_ran_ = false, stepped_ = false, progressed_ = false;
  Width width_;
  int places_ = 0;
  int64_t attempt_step_ = 0;
  std::vector<std::string> last_nodes_;
  std::string lost_member_;
  double free_since_s_;  ///< when the last attempt ended
  std::optional<double> too_few_since_s_;
  // Where the next attempt begins.
  /// look_: a checkpoint is needed; charged_: this attempt counts as a restart
  bool look_ = false, charged_ = false;
  std::optional<int64_t> at_most_, step_;
  std::optional<StateId> in_memory_;  ///< the state of step_ is there
  std::vector<StateId> refused_;
  bool was_saved_;
  std::string why_, cause_;
  // Failures so far.
  int restarts_ = 0, alike_ = 0, idle_ = 0;
  int64_t newest_step_;
  std::optional<Failure> last_failure_;
  std::vector<std::string> suspects_,
      quarantined_;  ///< suspects_: put out by this run; quarantined_: the run made progress without them
};

}  // namespace trainctl
