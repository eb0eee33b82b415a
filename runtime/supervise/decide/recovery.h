// Recovery decides what happens between the attempts of a run: whether and when the next attempt starts,
// and on which nodes. Pure.
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
// Nodes. An attempt uses the first nodes whose slots carry the largest possible width (node_pool.h). If no
// spare is left for a lost node, the next attempt has the largest width that the other nodes carry.
//
// Restarts. CrashLoop counts the failures in a row without progress, and says which count against
// max_restarts; a run that makes progress is never ended by the count. A checkpoint that cannot be loaded
// is no failure: it is repaired, once, or else the next older one is used. A state in memory that cannot be
// loaded, or not on the nodes of the next attempt, is not asked for again.
//
// Broken devices. A node whose device says itself that it is broken is put out at once, and costs no restart,
// as a lost node does not. On others failures are counted (node_pool.h).
//
// Every input has its time, in monotonic seconds. No effects, no clock, no threads.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/run/record/burn_in_record.h"
#include "runtime/supervise/decide/crash_loop.h"
#include "runtime/supervise/decide/node_pool.h"
#include "runtime/supervise/decide/source.h"
#include "runtime/train/control/control.h"

namespace trainctl {

/// A data-parallel width that the run may have.
struct Width {
  int data = 1;   ///< replicas
  int ranks = 1;  ///< of the whole mesh
};

/// How an attempt ended, from its Verdict.
struct AttemptEnd {
  /// went_back: ended at once, because the run goes on from an earlier state (Recovery::go_back)
  enum How { finished, stopped, regrouped, went_back, aborted, failed } how = finished;
  // For failed:
  ErrorCode code = ErrorCode::kWorker;
  std::string cause;  ///< one sentence
  int rank = -1;      ///< the first rank that failed; -1: no particular rank
  std::string node;   ///< the node of that rank; "": no particular node
  bool start_failed = false;  ///< the node could not start its ranks
  bool is_undecided = false;  ///< a device of several is at fault, and which is not known: it counts for none
};

/// Decision: begin the next epoch on these nodes, in the order of their ranks.
struct StartAttempt {
  std::vector<std::string> nodes;
  Width width;
  std::optional<int64_t>
      /// The checkpoint; nullopt: begin where the run began (step 0 or another run's checkpoint)
      step;
  std::string why;                   ///< one sentence for people; "" for the first attempt
  std::optional<StateId> in_memory;  ///< the state of `step` is in memory
  std::vector<std::string> burn_in = {};  ///< nodes to test before the first step
  /// Of each virtual stage, because some ranks are slow; empty: as the job has them.
  std::vector<int64_t> stage_layers = {};
};
/// Decision: find the newest usable state of the run whose step is at most `at_most` (nullopt: any step),
/// other than the `refused` ones in memory, then call checkpoint_found or no_checkpoint.
///   damaged   the checkpoint of this later step could not be loaded: if it can be repaired, it is the answer
struct FindCheckpoint {
  std::optional<int64_t> at_most;
  std::optional<int64_t> damaged;
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
/// The exit code of a run that is stopped at once on request, for which nothing is saved: that of a program
/// which Ctrl-C ends, whatever the request was.
inline constexpr int kStoppedAtOnce = 130;
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
    std::vector<std::string> nodes;      ///< names in order; all begin in state coming
    bool one_machine = false;  ///< the only node is this machine, of which people do not think as a node
    std::optional<int64_t> from_step;    ///< step of the run's own checkpoint to begin from
    std::optional<StateId> from_memory;  ///< that state is in memory; from_step is its step
    bool step_fixed = false;             ///< the user named that step: use no other checkpoint
    bool was_saved = false;              ///< the run saved a checkpoint before
    /// Nodes may hold a newer state in memory, left by an earlier supervisor: ask them before the first
    /// attempt.
    bool ask_nodes = false;
    int max_restarts = 0, loop_limit = 3;  ///< see crash_loop.h
    TooFew too_few = TooFew::wait;  ///< what to do if not even the smallest width fits
    double wait_limit_s = 600;      ///< for TooFew::wait; then exit 75
    double gather_limit_s =
        60;  ///< longest wait for nodes that are being started, before the first attempt or if no width fits
    double ask_limit_s = 10;  ///< for ask_nodes: longest wait for nodes that are being started
    double rejoin_limit_s = 1;  ///< longest wait for such nodes if a smaller width fits already
    bool burn_in = false;       ///< nodes are tested before their first step
    double settle_s = 5;        ///< a returned node must stay ready so long before an attempt is ended for it
    QuarantineRules quarantine;
  };
  /// The reason to end a running attempt after a save.
  enum class Regroup { none, wider, without_quarantined, other_layers };
  friend std::string text_of(Regroup regroup);  ///< one sentence; "" for none

  Recovery(Options options, double now_s);

  // ---- inputs
  void node_coming(const std::string& name, double now_s);
  void node_ready(const std::string& name, int slots, double now_s);
  /// `by_own_pause`: see NodePool::lost.
  void node_lost(const std::string& name, const std::string& why, double now_s, bool by_own_pause = false);
  /// Excludes the node from later attempts, or (false) allows it again. The current attempt keeps the node.
  /// `by_this_run`: failures of this run put the node out; the run uses it again if no width fits without it.
  void set_quarantined(const std::string& name, bool quarantined, bool by_this_run = false);
  /// Evidence against a node, as of an attempt that failed there.
  void suspect(const std::string& name, const std::string& why, double now_s);
  /// What the burn-in of the current attempt found. A node that is wrong is put out as a broken device; its
  /// rank fails with that. One that is slower than the others is put out if a spare can take its place, and
  /// the attempt goes on. Returns what is to be said of slow ones.
  std::vector<NodePool::Slow> burned_in(const std::vector<NodeTest>& nodes, double now_s);
  /// The steps of the current attempt show that a node is slow, or is not any more. See NodePool::found_slow.
  std::optional<NodePool::Slow> found_slow(const std::string& node, const std::string& text, double now_s);
  void not_slow(const std::string& node) { pool_.not_slow(node); }
  /// Call it now and then: a spare may have come for a slow node. Returns those that are put out now.
  std::vector<NodePool::Slow> replace_slow(double now_s);
  /// Stages are to have these layers while no spare takes the place of the slow ranks.
  void move_layers(std::vector<int64_t> stage_layers) { stage_layers_ = std::move(stage_layers); }
  /// No, where stages have others already, or an attempt with others failed before its first step.
  bool may_move_layers() const { return stage_layers_.empty() && !moved_in_vain_; }
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
  /// The next attempt begins from a state of step `at_most` or before, whatever ends the current one. Of
  /// several calls before it the earliest state counts; a later one where nothing so early is found.
  ///   may_begin_again   the run never had a checkpoint so early: without a state it begins at its start
  ///   why               one sentence
  void go_back(int64_t at_most, bool may_begin_again, const std::string& why);
  /// If no state of a call of go_back is found, the newest of step `at_most` or before is next.
  void or_back_to(int64_t at_most) { state_.back_to.try_emplace(at_most, false); }

  // ---- outputs
  /// The next decision. It stays the same until an input comes or the time of Wait has passed.
  Decision next(double now_s);
  /// Whether the current attempt should save and end, so that the next is wider, does without a quarantined
  /// node, or has other layers on its stages.
  Regroup regroup(double now_s) const;
  /// The nodes that failures of this run put into quarantine and without which the run then made progress,
  /// since the last call. The caller adds them to the quarantine list.
  std::vector<PutOutNode> take_quarantined();
  /// The latest step to which, since the last call, the run was to go back and no state was found; nullopt:
  /// none. It goes on from a later one.
  std::optional<int64_t> take_not_gone_back() { return std::exchange(not_gone_back_, std::nullopt); }
  const Width& width() const { return attempt_.width; }  ///< of the current or last attempt
  int attempts() const { return pool_.attempts(); }
  const std::vector<PoolNode>& pool() const { return pool_.nodes(); }
  int restarts() const { return restarts_; }  ///< after failures that count, in all
  bool running() const { return attempt_.is_running; }
  bool over() const { return over_.has_value(); }

 private:
  const Width* widest(int ranks) const;
  StartAttempt start(const Width& width) const;
  void forget_layers();
  Decision too_few(double now_s, int ranks);
  Decision end(Decision decision);
  void failed(const AttemptEnd& end, double now_s);
  void search(std::optional<int64_t> at_most, bool is_charged);
  void note_progress();

  Options options_;
  NodePool pool_;
  CrashLoop crash_loop_;
  StopLevel stop_ = StopLevel::none;
  std::optional<Decision> over_;
  /// The current or last attempt.
  struct {
    bool is_running = false, has_ever_run = false;
    bool stepped = false, progressed = false;
    Width width;
    std::vector<std::string> nodes;
    std::vector<int64_t> stage_layers;
    std::string lost_member;  ///< the first that it has lost; "": none
    int64_t step = 0;         ///< newest
  } attempt_;
  std::vector<int64_t> stage_layers_;  // of the next attempt
  bool moved_in_vain_ = false;
  /// The state from which that attempt began, or the next one begins.
  struct {
    bool is_searched = false;        ///< FindCheckpoint is the next decision
    bool is_charged = false;         ///< the attempt for which it is searched counts as a restart
    std::optional<int64_t> at_most;  ///< of the search
    std::map<int64_t, bool> back_to;  ///< go_back: no search finds one later than the first; may begin again
    std::optional<int64_t> damaged;  ///< of the search
    std::optional<int64_t> repaired; ///< the step that was searched for like that last
    std::optional<int64_t> step;
    std::optional<StateId> in_memory;  ///< the state of `step` is there
    std::vector<StateId> refused;
  } state_;
  double free_since_s_;  ///< when the last attempt ended
  std::optional<double> too_few_since_s_;
  bool asks_nodes_;  ///< Options::ask_nodes, until they are asked
  bool was_saved_;
  int64_t newest_step_;   ///< of all attempts
  int64_t newest_saved_;  ///< by any of them
  int restarts_ = 0;
  std::optional<int64_t> not_gone_back_;
  std::string why_;    ///< the next attempt starts
  std::string cause_;  ///< of the last failure
};

}  // namespace trainctl
