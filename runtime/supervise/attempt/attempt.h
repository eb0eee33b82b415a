// One attempt of a run: has its nodes start the ranks, drives Supervision from what nodes and signals tell,
// and leaves nothing behind.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/machine/mpirun.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/save_collector.h"
#include "runtime/supervise/nodes/fleet.h"
#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/attempt/stop_signals.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl {

/// What others learn while an attempt runs, and what they may ask of it.
struct AttemptHooks {
  /// In each turn, before anything is taken from the nodes; what it throws ends the attempt at once.
  std::function<void()> turn;
  std::function<void(int node)> node_up;  ///< of the fleet
  std::function<void(int node, const std::string& why)> node_lost;
  std::function<void(int node, const std::string& why)> start_failed;  ///< of its agent, or it was refused
  std::function<void()> all_present;                              ///< every rank has said hello
  std::function<void(int64_t step)> progressed, saved;
  /// One sentence: the attempt is to save and end, so that the next has other nodes; "": go on.
  std::function<std::string()> regroup;
};

struct AttemptOptions {
  struct Node {
    int node = 0;              ///< of the fleet
    int first = 0, count = 0;  ///< its ranks
    Environment environment;   ///< its own settings, on top of the line's
    std::string missing;       ///< attach: why none of its ranks run, ""
  };
  std::vector<Node> nodes;  ///< in the order of their ranks
  LaunchLine line;          ///< mpirun with its environment, or what starts one rank
  bool pmix = false;
  bool attach = false;  ///< the ranks run already; their agents have been welcomed
  std::string session_folder, shared_memory_folder;  ///< of the attempt, the same on every node
  Supervision::Options limits;                       ///< `nodes` and `launcher` are filled in
  SaveCollector::Options saves;
  AttemptFile file;  ///< what ranks read; where they run is filled in
  AttemptHooks hooks;
};

/// How it ended, and whether a stop of it was ours (AttemptHooks::regroup).
struct AttemptResult {
  Verdict verdict;
  bool regrouped = false;
  std::optional<double> first_evidence_s;  ///< of a failure, monotonic
};

/// Runs it to its end: when this returns, no process of the attempt is left (or the verdict says which).
/// Throws Error where the run directory cannot be written, and RunTaken where another supervisor has the run.
AttemptResult run_attempt(AttemptOptions options, Fleet& fleet, const RunDirectory& run, FileSystem& fs,
                          Clock& clock, RunLog& log, StopSignals& signals);

}  // namespace trainctl
