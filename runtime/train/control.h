// The control channel: how a rank and its supervisor talk, outside MPI.
//
// A rank says hello, what it does, what each step gave, and what it saved; the supervisor says stop. Over TCP, one JSON
// object a line (runtime/run/rank/control_client.cpp); in a test, direct calls (runtime/run/rank/thread_control.cpp). Nothing here is collective.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/activity.h"
#include "runtime/base/problem.h"

namespace trainctl {

enum class StopLevel { none = 0, save_and_stop = 1, now = 2 };

/// One training step as rank 0 of the run reports it; becomes a line of metrics.jsonl.
struct StepReport {
  int64_t step = 0;     ///< completed steps, from 1
  std::string json;     ///< the whole object
  bool log = true;      ///< also shown on the console
  std::string ranks;    ///< the numbers of every rank, a line of metrics.ranks.jsonl; "" in most steps
};

/// A rank's end. Thread rule: all calls from the rank's main thread, except that stop_level() may be polled from anywhere.
class Control {
 public:
  virtual ~Control() = default;

  /// Highest stop level the supervisor has asked for so far. Never blocks.
  virtual StopLevel stop_level() const = 0;

  /// What this rank does from now on. Cheap: kept in memory, on the board of its machine if there is one, and carried by the next
  /// heartbeat and by the crash record.
  virtual void activity(const Activity& now) = 0;
  /// The same of the device's own waits (see with_device); calls do not overlap, from any thread.
  virtual void device_activity(const Activity& now) = 0;

  virtual void report(const StepReport& report) = 0;
  /// Appends to events.jsonl: {"kind": kind, ...fields of json}.
  virtual void event(const std::string& kind, const std::string& json) = 0;

  struct SaveResult {
    bool ok = false;
    std::string message;   ///< root hash when ok, else why not
  };
  /// Hands in this rank's receipt of the save of `state` (the same on every rank; `tensors` is the full global list, used from rank 0
  /// only) and waits until the supervisor has published or given up. `failure` non-empty: this rank could not write; the save
  /// fails on every rank, training goes on.
  virtual SaveResult commit_shard(const ckpt::StateInfo& state, const std::vector<ckpt::Tensor>& tensors,
                                  const ckpt::ShardReceipt& receipt, const std::string& failure) = 0;
  /// Rank 0, before the shards: makes the saving directory. Others wait for it inside begin_save. The
  /// problem is the same on every rank; commit_shard follows in either case.
  virtual Problem begin_save(const ckpt::StateInfo& state) = 0;

  /// The orderly end of this rank.
  virtual void done() = 0;
};

}  // namespace trainctl
