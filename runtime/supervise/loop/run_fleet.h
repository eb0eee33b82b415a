// RunFleet is the fleet of a run: it attaches to the agents that a supervisor before has left, or starts
// agents, reports what happens to nodes to Recovery, the records and the console, and ends the agents.
//
//   attach() --ranks or agents are there--> fleet --end()--> no fleet
//      +------nothing is there; begin()---> fleet
//
// One thread; between attempts the caller polls the fleet.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/ensure.h"
#include "runtime/machine/session.h"
#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/decide/source.h"
#include "runtime/supervise/loop/supervised_run.h"

namespace trainctl {

class RunFleet {
 public:
  /// Both must outlive it. Make it before anything else of this supervisor writes supervisor.json.
  RunFleet(SupervisedRun& run, Recovery& recovery);

  enum class Left { nothing, agents, ranks };
  /// Connects to what the supervisor of the attempt plan.attach has left: its ranks, or its agents, which
  /// then kill their ranks. Waits until every node of the attempt has answered, at most a little longer
  /// than the silence after which agents dial again. Leaves no fleet if nothing is there, or without
  /// plan.attach.
  Left attach(const SessionFolders& folders);
  /// Starts an agent on every node.
  void begin(const SessionFolders& folders);
  /// Takes the fleet's events again after an attempt, which had them. Nodes that came meanwhile are reported.
  void listen();

  /// What the nodes hold of the run's state in their memory. Nodes that do not answer in time are left out.
  /// `turn` is called in each turn of the wait.
  std::vector<NodePieces> pieces(const std::function<void()>& turn);

  /// There must be a fleet.
  Fleet& fleet() {
    ENSURE(fleet_);
    return *fleet_;
  }
  /// Waits for news of the nodes or for `other_fd` until `until_s`, at most half a second.
  void poll(double until_s, int other_fd) const;

  // ---- events of nodes during an attempt, which calls these; `node` is an index of the fleet
  void node_up(int node);
  /// `is_recorded`: the attempt writes the event.
  void node_lost(int node, const NodeLoss& loss, bool is_recorded);
  /// The agent could not be started: the node is not waited for. On one machine Error(kLauncher).
  void start_failed(int node, const std::string& why);

  /// The nodes for status.json, in the order of the pool; none on one machine. A node of `places` (the
  /// current attempt) has its ranks.
  std::vector<NodeStatus> statuses(const std::vector<AttemptPlan::Node>& places) const;
  /// `why`, and after end() what the problem of each node was.
  std::string with_problems(std::string why) const;

  /// Ends every agent. What is in no checkpoint yet stays in memory, for a resume. Does nothing without a
  /// fleet.
  void end();
  /// Leaves the agents to another supervisor, which has taken the run.
  void leave();
  /// Kills every process that carries this run's mark. The caller holds the run's lock, so they are
  /// leftovers: agents of a supervisor that was killed end everything after their grace time; a stopped
  /// agent (SIGSTOP) cannot.
  void end_leftovers();

 private:
  Fleet::Handler handler();
  size_t nodes_there(const AttemptFile& file) const;
  void await_agents(double limit_s, const std::function<bool()>& enough);

  SupervisedRun& run_;
  Recovery& recovery_;
  const bool has_orphans_;  ///< a supervisor before did not end its agents
  std::optional<Fleet> fleet_;
  std::set<int> is_up_;  ///< nodes that Recovery knows as ready
  std::map<int, std::string> start_problems_;
  std::vector<std::string> last_problems_;  ///< of each node at the end
};

}  // namespace trainctl
