// run_attempt runs one attempt of a run: it orders the nodes to start the ranks, passes the events of nodes
// and signals to Supervision, carries out its actions, and ends all processes of the attempt.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervise/attempt/attempt_plan.h"
#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/attempt/stop_signals.h"
#include "runtime/supervise/decide/supervision.h"
#include "runtime/supervise/nodes/fleet.h"

namespace trainctl {

/// Callbacks during an attempt, on its thread. `node` is an index of the fleet.
struct AttemptHooks {
  /// Called in each turn, before messages of the nodes are read. An exception ends the attempt at once.
  std::function<void()> turn;
  std::function<void(int node)> node_up;
  std::function<void(int node, const NodeLoss& loss)> node_lost;
  /// The agent of the node could not be started, or was refused.
  std::function<void(int node, const std::string& why)> start_failed;
  std::function<void()> all_present;  ///< every rank has sent hello
  std::function<void(int64_t step)> progressed, saved;
  std::function<void()> must_hold = [] {};  ///< see SaveFolder::Options
  /// Returns why the attempt must save and end so that the next one uses other nodes, one sentence; "": go
  /// on.
  std::function<std::string()> regroup;
  /// Whether the attempt must end at once, without a save, because the run goes on from an earlier state.
  std::function<bool()> goes_back;
};

struct AttemptResult {
  Verdict verdict;
  bool regrouped = false;                  ///< AttemptHooks::regroup stopped the attempt
  bool went_back = false;                  ///< AttemptHooks::goes_back ended it
  std::optional<double> first_evidence_s;  ///< monotonic time of the first evidence of a failure
};

/// Runs the attempt to its end. When it returns, no process of the attempt is left; the console names nodes
/// on which some could not be killed. Throws Error if the run directory cannot be written, RunTaken if
/// another supervisor has the run.
AttemptResult run_attempt(AttemptPlan plan, AttemptHooks hooks, Fleet& fleet, const RunDirectory& run,
                          FileSystem& fs, Clock& clock, RunLog& log, StopSignals& signals);

}  // namespace trainctl
