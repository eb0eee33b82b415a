// Recovery: what comes between the attempts of a run, and on which nodes, decided purely from what is known.
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
// Nodes have an order. An attempt runs on the first ones that carry the largest possible width. A node that
// stays keeps its place among them (so its ranks stay where their node memory is); the place of a lost node
// goes to the first spare; a node that returns goes to the end of the order. Where no spare is left, the
// largest width that the rest carries goes on.
//
// What costs a restart (max_restarts): a failure of a rank. A lost node costs none; nor does a checkpoint
// that cannot be loaded, for which the next older one is taken. A run that makes no progress is stopped in
// every case: progress of an attempt is a step beyond the newest that any attempt has finished, or a
// checkpoint newer than the one it began from. Three attempts in a row (loop_limit) without progress that
// failed alike (same code, same newest step, same place) are a crash loop; so are nine that failed
// differently. A node on which failures repeat is put into quarantine if the other nodes carry the run.
//
// Times are monotonic seconds, given with every input. No effects, no clock, no threads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/supervise/decide/quarantine.h"
#include "runtime/train/control.h"

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
  double since_s = 0;            ///< in this state
  std::string why;               ///< of its loss
  int place = -1;                ///< among the nodes of the attempt that runs or ran last, -1: none
  bool member = false;           ///< of the attempt that runs
  std::vector<double> failures;  ///< times of the last ones blamed on it
};

/// How an attempt ended, as its supervision says.
struct AttemptEnd {
  enum How { finished, stopped, regrouped, aborted, failed } how = finished;
  // For failed:
  ErrorCode code = ErrorCode::kWorker;
  std::string cause;  ///< one sentence
  int rank = -1;      ///< the first to fail, -1: none in particular
  std::string node;   ///< where it ran, "": none in particular
};

/// Begin the next epoch on these nodes, in the order of their places.
struct StartAttempt {
  std::vector<std::string> nodes;
  Width width;
  std::optional<int64_t>
      step;         ///< of the checkpoint; nothing: where the run began (step 0, or another run's checkpoint)
  std::string why;  ///< one sentence for people; "" for the first attempt
};
/// Find the newest usable checkpoint of the run, of at most that step, then call checkpoint_found or
/// no_checkpoint.
struct FindCheckpoint {
  std::optional<int64_t> at_most;
};
/// Nothing to do before `until_s` unless there is news; infinity while an attempt runs.
struct Wait {
  double until_s = 0;
  std::string why;
};
/// Give the allocation back and be started again by the scheduler; exit 75.
struct RequeueJob {
  std::string why;
};
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
    int tensor = 1;  ///< ranks kept together on a node (the size of a tensor group); 1: they may be apart
    std::vector<std::string> nodes;    ///< in order; each is awaited from the start
    std::optional<int64_t> from_step;  ///< the run's own checkpoint to begin from
    bool step_fixed = false;           ///< a person named that step: no other will do
    int max_restarts = 0;
    int loop_limit = 3;             ///< attempts in a row that fail alike without progress
    TooFew too_few = TooFew::wait;  ///< when not even the smallest width fits
    double wait_limit_s = 600;      ///< of TooFew::wait, then exit 75
    double gather_limit_s =
        60;  ///< for nodes that are being started, before the first attempt or while too few are there
    double rejoin_limit_s = 1;  ///< the same where a smaller width fits meanwhile
    double settle_s = 5;        ///< a returned node is there for so long before an attempt is ended for it
    QuarantineRules quarantine;
  };
  /// What would make it worthwhile to end a running attempt after a save.
  enum class Regroup { none, wider, without_quarantined };

  Recovery(Options options, double now_s);

  // ---- inputs
  void node_coming(const std::string& name, double now_s);
  void node_ready(const std::string& name, int slots, double now_s);
  void node_lost(const std::string& name, const std::string& why, double now_s);
  /// Out for this run, or (false) to be used again. A node that runs ranks stays until the attempt ends.
  /// `by_this_run`: its own failures put the node out; the run uses it again where it fits in no other way.
  void set_quarantined(const std::string& name, bool quarantined, bool by_this_run = false);
  /// `start` as next() gave it, or an attempt that another supervisor has started, once its nodes are ready.
  void attempt_started(const StartAttempt& start, double now_s);
  void progressed(int64_t step);  ///< the attempt has finished this step
  void saved(int64_t step);       ///< a checkpoint of the run was published
  void attempt_ended(const AttemptEnd& end, double now_s);
  void checkpoint_found(int64_t step);
  /// `skipped`: how many were there, but unusable.
  void no_checkpoint(int skipped);
  void stop(StopLevel level);

  // ---- outputs
  /// The same answer until there is news or the time of Wait has come.
  Decision next(double now_s);
  /// Whether a running attempt should save and end, so that the next is wider or leaves a quarantined node.
  Regroup regroup(double now_s) const;
  /// Nodes that this run's failures put into quarantine and without which it made progress, since the last
  /// call: for the list that outlives the job.
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
  // The attempt that runs, or ran last.
  bool running_ = false, ever_ran_ = false, stepped_ = false, progressed_ = false;
  Width width_;
  int places_ = 0;
  int64_t attempt_step_ = 0;
  std::vector<std::string> last_nodes_;
  std::string lost_member_;
  double free_since_s_;  ///< since when no attempt runs
  std::optional<double> too_few_since_s_;
  // Where the next one begins.
  bool look_ = false, charged_ = false;  ///< a checkpoint is needed; it costs a restart
  std::optional<int64_t> at_most_, step_;
  bool was_saved_;
  std::string why_, cause_;
  // What failed so far.
  int restarts_ = 0, alike_ = 0, idle_ = 0;
  int64_t newest_step_;
  std::optional<Failure> last_failure_;
  std::vector<std::string> suspects_,
      quarantined_;  ///< put out by this run; of these, those without which the run went on
};

}  // namespace trainctl
