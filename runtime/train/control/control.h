// Control: a rank's end of the control channel to its supervisor, outside MPI.
//
// A rank sends its activity, step reports and receipts of saves; the supervisor sends stop requests and
// results of saves. In a run the channel is a socket with one JSON object per line
// (runtime/run/rank/control_client.cpp); in tests it is direct calls (test/support/thread_control.cpp).
#pragma once
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/activity.h"
#include "runtime/base/problem.h"
#include "runtime/train/control/event_kind.h"
#include "runtime/train/measure/metrics.h"

namespace trainctl {

/// What stands in the place of a communicator in the activity of a rank that waits for the supervisor.
inline constexpr const char* kSupervisorWait = "supervisor";

enum class StopLevel { none = 0, save_and_stop = 1, now = 2 };

/// One training step as rank 0 of the run reports it. With the times of the ranks it becomes a line of
/// metrics.jsonl (runtime/run/record/step_assembly.h).
struct StepReport {
  StepLine line;                 ///< without numbers of ranks
  bool log = true;               ///< the console's table shows it
  std::optional<StepWork> work;  ///< every rank reports its times of this step; nullopt: none does
  bool each_rank = false;        ///< they also become a line of metrics.ranks.jsonl
  std::string experts = {};      ///< a line of metrics.experts.jsonl; "": none of this step
};

/// An order of the supervisor to record what ranks do in some steps.
struct TraceOrder {
  int64_t number = 0;      ///< differs from that of every other order; 0: there is none
  int64_t first_step = 0;  ///< the earliest step to record
  int64_t steps = 0;       ///< how many
  std::vector<int> ranks;  ///< that record, ascending
  std::string folder;      ///< for their recordings; the command removes it when it gives up
};

/// The result of an order on one rank.
struct TraceResult {
  int64_t number = 0;
  int64_t first_step = 0, last_step = -1;  ///< what was recorded; last_step < first_step: nothing
  uint64_t spans = 0, overwritten = 0;     ///< kept, and lost because the ring was full
  std::string problem;                     ///< why there is no recording, one sentence; "": there is one
};

/// Thread rule: only the rank's main thread calls it; but any thread may call stop_level(), event(),
/// hand_in() and device_activity().
class Control {
 public:
  virtual ~Control() = default;

  /// The highest stop level that the supervisor has requested so far. Never blocks.
  virtual StopLevel stop_level() const = 0;
  /// How long this rank has from now until the supervisor ends it, because a stop has a limit; infinite while
  /// none is requested. Never blocks. Any thread.
  virtual double stop_left_s() const { return std::numeric_limits<double>::infinity(); }

  /// Sets the current activity of this rank. Cheap: it is stored in memory and on the machine's activity
  /// board, and sent with the next heartbeat. A crash record contains it.
  virtual void activity(const Activity& now) = 0;
  /// Sets what the device waits for (see with_device). Any thread, but one call at a time.
  virtual void device_activity(const Activity& now) = 0;

  virtual void report(const StepReport& report) = 0;
  /// Sends this rank's times of a step for which StepReport::work is set. Rank 0 does so before its report.
  virtual void report_times(int64_t step, const RankTimes& times) = 0;
  /// Appends to events.jsonl: {"kind": kind, ...fields of json}.
  virtual void event(EventKind kind, const std::string& json) = 0;

  /// A rank's part of a save into the directory.
  struct HandedIn {
    int64_t number = 0;                 ///< of the save in this epoch, from 0; equal on every rank
    ckpt::StateInfo state;              ///< rank 0's is published
    std::vector<ckpt::Tensor> tensors;  ///< of all ranks; rank 0's are published
    ckpt::ShardReceipt receipt;         ///< no file name: the rank owns nothing, or has failed
    std::string failure;                ///< why this rank could not write; "": it could
    double took_s = 0;                  ///< since the save began on this rank
    double cpu_s = 0;                   ///< time of the cores that the save took from this rank
  };
  struct SaveResult {
    bool ok = false;
    std::string message;   ///< root hash if ok, otherwise the reason
  };
  /// Sends the rank's part of a save. Waits for no answer: when all ranks have handed in, the supervisor
  /// publishes the checkpoint, or reports that the save failed. Every rank hands in once for each save. Any
  /// thread.
  virtual void hand_in(const HandedIn& part) = 0;
  /// What became of save `number`; nullopt: that is not known yet, or not any more. Never blocks.
  virtual std::optional<SaveResult> saved(int64_t number) const = 0;
  /// Waits until the supervisor has published save `number` or given it up.
  virtual SaveResult await_saved(int64_t number) = 0;

  /// The number of the newest order to trace; 0: there was none. Never blocks. Main thread.
  virtual int64_t trace_number() const { return 0; }
  /// That order.
  virtual TraceOrder trace_order() const { return {}; }
  /// Reports the result of an order. Any thread.
  virtual void traced(const TraceResult& result) { (void)result; }

  /// Reports the orderly end of this rank.
  virtual void done() = 0;
};

}  // namespace trainctl
