// Control: a rank's end of the control channel to its supervisor, outside MPI.
//
// A rank sends its activity, step reports and receipts of saves; the supervisor sends stop requests and
// results of saves. In a run the channel is a socket with one JSON object per line
// (runtime/run/rank/control_client.cpp); in tests it is direct calls (runtime/run/rank/thread_control.cpp).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/activity.h"
#include "runtime/base/problem.h"
#include "runtime/train/event_kind.h"

namespace trainctl {

/// What stands in the place of a communicator in the activity of a rank that waits for the supervisor.
inline constexpr const char* kSupervisorWait = "supervisor";

enum class StopLevel { none = 0, save_and_stop = 1, now = 2 };

/// One training step as rank 0 of the run reports it; becomes a line of metrics.jsonl.
struct StepReport {
  int64_t step = 0;     ///< completed steps, from 1
  std::string json;     ///< the whole object
  bool log = true;      ///< the console's table shows it
  std::string ranks;    ///< numbers of every rank, a line of metrics.ranks.jsonl; "": none in this step
};

/// Thread rule: only the rank's main thread calls it; but any thread may call stop_level() and
/// device_activity().
class Control {
 public:
  virtual ~Control() = default;

  /// The highest stop level that the supervisor has requested so far. Never blocks.
  virtual StopLevel stop_level() const = 0;

  /// Sets the current activity of this rank. Cheap: it is stored in memory and on the machine's activity
  /// board, and sent with the next heartbeat. A crash record contains it.
  virtual void activity(const Activity& now) = 0;
  /// Sets what the device waits for (see with_device). Any thread, but one call at a time.
  virtual void device_activity(const Activity& now) = 0;

  virtual void report(const StepReport& report) = 0;
  /// Appends to events.jsonl: {"kind": kind, ...fields of json}.
  virtual void event(EventKind kind, const std::string& json) = 0;

  struct SaveResult {
    bool ok = false;
    std::string message;   ///< root hash if ok, otherwise the reason
  };
  /// Sends this rank's receipt for the save of `state` and waits until the supervisor has published the
  /// checkpoint or given up.
  ///   state     the same on every rank
  ///   tensors   the global list of tensors; only that of rank 0 is used
  ///   failure   why this rank could not write, "": it could. Otherwise the save fails on every rank, and training continues
  virtual SaveResult commit_shard(const ckpt::StateInfo& state, const std::vector<ckpt::Tensor>& tensors,
                                  const ckpt::ShardReceipt& receipt, const std::string& failure) = 0;
  /// Every rank calls it before it writes its shard. On rank 0 it makes the saving directory; other ranks
  /// wait for that. Every rank gets the same result, and calls commit_shard in either case.
  virtual Problem begin_save(const ckpt::StateInfo& state) = 0;

  /// Reports the orderly end of this rank.
  virtual void done() = 0;
};

}  // namespace trainctl
