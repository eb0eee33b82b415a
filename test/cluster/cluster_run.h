// A run of trainctl on fake nodes: starts it, shows how far it is, and compares what it leaves with a run that
// nothing disturbed.
//
// 8 ranks (TP2 x PP2 x DP2, four lanes) on nodes of two slots: node0 ... node3 run ranks, node4 is a spare.
// The supervisor runs on node0 unless a setting says otherwise. One thread.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "test/support/fake_nodes.h"

namespace trainctl::test {

/// Nodes of which each has its own /tmp, as machines have. Where the program itself lies in /tmp they share
/// it.
FakeNodes::Options machines();

struct RunSettings {
  std::string start = "pmix";    ///< launcher.start
  int64_t steps = 50;            ///< about 25 ms each on two cores
  int supervisor = 0;            ///< the node that launches
  double silence_s = 2.5;        ///< fault_tolerance.node_silence_seconds; a busy machine is silent for 1 s
  double grace_s = 4;            ///< fault_tolerance.grace_seconds
  std::string hosts = R"(["node0","node1","node2","node3","node4"])";
  std::vector<std::string> set;  ///< more fields, "PATH=VALUE"
  int64_t max_steps = 0;         ///< --max-steps
  std::vector<std::string> environment = {};  ///< of the supervisor, "NAME=VALUE"
  std::string program = "";  ///< "": the one of this build
};

/// What a run that nothing disturbed leaves: each step's loss and gradient norm, and the state after the last.
struct Curve {
  std::vector<std::string> steps;  ///< "1 loss grad_norm", as written: the same text is the same bits
  std::string root_hash;
  std::map<int64_t, std::string> roots;  ///< of each checkpoint, by step
};

class ClusterRun {
 public:
  ClusterRun(FakeNodes& nodes, RunSettings settings);
  /// Kills the supervisor; the nodes end the rest.
  ~ClusterRun();

  /// With more fields than the settings have.
  void launch(const std::vector<std::string>& more = {});
  /// From a node, with more fields than the launch had. What was started before must have ended.
  void resume(int node, const std::vector<std::string>& set = {});
  /// Any trainctl command with this run as its argument.
  Outcome command(int node, const std::string& word, double seconds = 120);
  Child& supervisor() { return *supervisor_; }
  pid_t supervisor_process() const;
  /// Continues a program of a node that was stopped, and what started it there, which has stopped with it.
  static void go_on(pid_t pid);
  /// Kills the supervisor alone, as `kill -9` does.
  void kill_supervisor();
  /// Stops the supervisor as SIGSTOP does, has the run's lock forgotten as a server of files does that hears
  /// nothing, and gives the supervisor away: another one may be started.
  struct Stopped {
    std::unique_ptr<Child> child;
    pid_t pid = 0;
  };
  Stopped stop_supervisor();
  /// Supervisors that agents have started, on any node.
  std::vector<pid_t> started_supervisors() const;
  /// After a takeover: fails the test where the run has no end within `seconds`. The event of its end.
  Json await_end(double seconds = 180);
  /// The end of launch or resume.
  Outcome finish(double seconds = 600);

  const std::string& path() const { return path_; }
  /// The newest step in metrics.jsonl, 0 for none.
  int64_t step() const;
  /// Fails the test where the run ends, or the time is over, before this step is finished.
  void await_step(int64_t step, double seconds = 120);
  /// Of one kind, in their order; "": all.
  std::vector<Json> events(const std::string& kind = "") const;
  void await_event(const std::string& kind, size_t count = 1, double seconds = 120);
  uint64_t epoch() const;
  /// Console and logs, for a failed assertion.
  std::string story() const;

  /// Nodes that run ranks in this epoch, without the supervisor's. The first attempt takes those that come
  /// first.
  std::vector<int> members() const;
  /// Processes of the ranks on a node, as numbered on this machine.
  std::vector<pid_t> ranks(int node) const;
  std::optional<pid_t> agent(int node) const;

  /// Each step is once in metrics.jsonl, with its bits, and each checkpoint has the undisturbed root hash.
  void check_bits() const;
  void check_bits(const Curve& expected) const;
  /// No process of the run is left on any node within `seconds`, and no folder of one on a living node. An agent that is
  /// started as the run ends has heard of no grace time but the default, 30 s.
  void check_nothing_left(double seconds = 40) const;
  /// No process of the run, wherever.
  std::vector<pid_t> processes() const;

  Curve curve() const;
  const std::string& start() const { return settings_.start; }
  /// Of a run of so many steps; made once a program.
  static const Curve& undisturbed(int64_t steps);
  /// Of a run of `total` steps on one node with two ranks, up to `step`.
  static Curve straight_to(int64_t step, int64_t total);

 private:
  void begin(int node, std::vector<std::string> words);
  std::vector<pid_t> programs(int node, const std::string& subcommand) const;
  std::string own_program() const;

  FakeNodes& nodes_;
  const RunSettings settings_;
  std::string path_;
  int supervisor_node_ = 0;
  std::unique_ptr<Child> supervisor_;
};

std::string program();
/// Its twin, whose GPU is emulated: one GPU a node.
std::string emulated_program();

}  // namespace trainctl::test
