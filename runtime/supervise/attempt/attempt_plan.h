// AttemptPlan is what an attempt of a run will be: which ranks run on which node, what starts them, from
// which state, within which limits. plan_attempt makes it of all that is known before. Pure; the same facts
// give the same plan.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/problem.h"
#include "runtime/machine/mpirun.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/step_assembly.h"
#include "runtime/run/saves/save_collector.h"
#include "runtime/run/wire/node_wire.h"
#include "runtime/supervise/decide/placement.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/decide/source.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl {

/// A node of the run, as it is known when an attempt is planned.
struct KnownNode {
  ClusterNode node;
  const wire::NodeHello* hello = nullptr;  ///< null: it is not connected
};

struct AttemptFacts {
  const ParsedJob& job;  ///< at the width of the run
  RunDirectory run;
  std::vector<KnownNode> nodes;  ///< by the index of the fleet
  bool one_machine = true;
  StartAttempt start;                 ///< the decision
  BeginFrom begin;                    ///< the state from which it begins
  std::string manifest;               ///< of begin.folder, see AttemptFile::resume_manifest
  bool new_data = false;              ///< see AttemptFile
  std::vector<Beginning> beginnings;  ///< of the epochs before
  std::vector<SaveHistory> saves;     ///< what they tell about saves
  std::string lineage_json = "[]";    ///< until the step from which it begins
  Remedies remedies;                  ///< what was decided about the run's loss
  std::vector<ReplicaDispute> disputes = {};  ///< of the attempts before, not settled
  uint64_t epoch = 1;
  int64_t last_step = 0, max_steps = 0;  ///< the run ends after last_step; max_steps: see AttemptFile
  double matmul_flops_per_s = 0;
  std::string token;     ///< a new random one, for its mark and its folders
  LaunchInput launcher;  ///< what is known of this process and its mpirun; the rest is planned
};

struct AttemptPlan {
  struct Node {
    int node = 0;              ///< index of the fleet
    int first = 0, count = 0;  ///< its ranks: first .. first + count - 1
    std::string name, host;    ///< in the run; its own
    Environment environment;   ///< variables of this node, added to the line's
    int partner = -1;  ///< index in `nodes` of the node that holds second copies of its memory; -1: none
    wire::PieceServerAddress pieces;  ///< where others read what it holds
    std::string missing;              ///< attach: why none of its ranks run; "": they run
  };
  std::vector<Node> nodes;                 ///< in the order of their ranks
  LaunchInput launch;                      ///< of which `line` is made
  LaunchLine line;                         ///< command line and environment of mpirun, or (pmix) of one rank
  bool pmix = false;                       ///< the agents start the ranks; otherwise mpirun does
  std::vector<wire::PieceHolder> holders;  ///< StartOrder::holders
  bool keeps_copies = false;  ///< the ranks keep copies of their state in the memory of their nodes
  /// What the second copies do not survive, one sentence; none: they survive the loss of any one node and
  /// of any one data-parallel replica.
  Problem weakness = Problem::none();
  bool attach = false;  ///< the ranks run already, and their agents have been welcomed
  Supervision::Options limits;
  double times_patience_s = StepAssembly::Options{}.patience_s;  ///< of a step's report
  SaveFolder::Options saves;
  AttemptFile file;
};

/// Whether the ranks of the attempt reach the state from which it begins: on one machine always, else if
/// every node that holds a part of it is there.
bool is_reachable(const AttemptFacts& facts);

/// All but what starts the ranks, which depends on `launch`. The state must be reachable. Error(kPreflight)
/// if the ranks do not fit on the nodes.
AttemptPlan plan_attempt(const AttemptFacts& facts);
/// The plan with what starts its ranks.
AttemptPlan with_start(AttemptPlan plan, bool pmix, LaunchLine line);
/// The attempt of `file`, whose ranks run. Nodes on which they no longer run are missing.
AttemptPlan plan_attach(const AttemptFacts& facts, const AttemptFile& file);

/// The order that makes plan.nodes[index] start its ranks.
wire::StartOrder start_order(const AttemptPlan& plan, size_t index);

/// Why the ranks of an attempt do not run on a node. `hello`: of the node, null if it is not connected.
Problem missing_from(const wire::NodeHello* hello, uint64_t epoch);
/// Whether `node` (index of the fleet) is one of `places`.
bool runs_ranks(const std::vector<AttemptPlan::Node>& places, int node);

}  // namespace trainctl
