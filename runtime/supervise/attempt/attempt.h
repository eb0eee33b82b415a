// run_attempt runs one attempt of a run: it orders the nodes to start the ranks, passes the events of nodes
// and signals to Supervision, carries out its actions, and ends all processes of the attempt.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/machine/mpirun.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/saves/save_collector.h"
#include "runtime/supervise/nodes/fleet.h"
#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/attempt/stop_signals.h"
#include "runtime/supervise/decide/supervision.h"

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
  /// Returns why the attempt must save and end so that the next one uses other nodes, one sentence; "": go
  /// on.
  std::function<std::string()> regroup;
};

struct AttemptOptions {
  struct Node {
    int node = 0;              ///< index of the fleet
    int first = 0, count = 0;  ///< its ranks: first .. first + count - 1
    Environment environment;   ///< variables of this node, added to the line's
    int partner = -1;          ///< index in `nodes` of the node that holds second copies of its memory; -1: none
    std::string missing;       ///< attach: why none of its ranks run; "": they run
  };
  std::vector<Node> nodes;  ///< in the order of their ranks
  LaunchLine line;          ///< command line and environment of mpirun, or (pmix) of one rank
  bool pmix = false;        ///< the agents start the ranks; otherwise mpirun does
  std::vector<wire::PieceHolder> holders;  ///< StartOrder::holders
  bool keeps_copies = false;  ///< the ranks keep copies of their state in the memory of their nodes
  bool attach = false;      ///< the ranks run already, and their agents have been welcomed
  /// Scratch folders of the attempt, the same on every node
  std::string session_folder, shared_memory_folder;
  Supervision::Options limits;                       ///< run_attempt fills in `nodes` and `launcher`
  SaveCollector::Options saves;
  AttemptFile file;  ///< run_attempt fills in the nodes, the mark and the folders
  AttemptHooks hooks;
};

struct AttemptResult {
  Verdict verdict;
  bool regrouped = false;                  ///< AttemptHooks::regroup stopped the attempt
  std::optional<double> first_evidence_s;  ///< monotonic time of the first evidence of a failure
};

/// Runs the attempt to its end. When it returns, no process of the attempt is left; the console names nodes
/// on which some could not be killed. Throws Error if the run directory cannot be written, RunTaken if
/// another supervisor has the run.
AttemptResult run_attempt(AttemptOptions options, Fleet& fleet, const RunDirectory& run, FileSystem& fs,
                          Clock& clock, RunLog& log, StopSignals& signals);

}  // namespace trainctl
