// Several nodes on one machine, for tests: RAII over test/support/cluster/nodes.sh and slurm.sh.
//
// A node has its own address, hostname, processes, /dev/shm, /run and /local; every other folder is shared.
// Nodes end with their owner, also when the test program is killed: a keeper process outside of the
// program's process tree waits for its end. Each object is a cluster of its own; several test programs run
// side by side. One thread.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "test/support/child.h"

namespace trainctl::test {

/// Why this machine cannot make fake nodes (root, namespaces, iproute2); "" if it can.
std::string fake_nodes_missing();
/// Why this machine cannot run Slurm over fake nodes; "" if it can.
std::string fake_slurm_missing();

/// Ends the test program with exit status 77, which ctest reports as skipped, unless `missing` is "". Call
/// it in main, before any test case: a program that has checked something should not end as skipped. Where
/// a test case has failed before, the program ends as failed.
void skip_program_if(const std::string& missing);

class FakeNodes {
 public:
  struct Options {
    std::vector<std::string>
        own_folders;           ///< more folders of which each node has its own, empty at each boot
    std::string shared_below;  ///< where folder() is made; "": the folder for temporary files
  };
  /// node0 ... node<count-1>, in 50 ms each. Where that is impossible, skip_program_if with the reason.
  explicit FakeNodes(int count);
  FakeNodes(int count, const Options& options);
  /// Ends every process of every node and removes the network, usually within 50 ms.
  ~FakeNodes();
  FakeNodes(const FakeNodes&) = delete;
  FakeNodes& operator=(const FakeNodes&) = delete;

  int count() const { return count_; }
  /// Starts a program on a node, in `directory` (default: folder()). It receives the signals TERM INT HUP
  /// QUIT USR1 USR2 that are sent to the Child, and is killed when the Child is destroyed. `pid()` of the
  /// Child is a wrapper's: for other signals use `kill`.
  Child exec(int node, const std::vector<std::string>& argv, const std::vector<std::string>& environment = {},
             const std::string& directory = "");
  /// The same, to its end.
  Outcome run(int node, const std::vector<std::string>& argv, double seconds = 120,
              const std::vector<std::string>& environment = {});

  /// All processes die at once; the node's kernel still answers. Returns when they are gone.
  void crash(int node);
  /// The same in silence: not a packet leaves.
  void poweroff(int node);
  /// Brings a crashed or switched-off node back, without processes.
  void boot(int node);
  /// Silence between the node and all others; the node goes on and its link stays up.
  void partition(int node);
  void heal(int node);
  /// Silence between two nodes only.
  void cut(int a, int b);
  void mend(int a, int b);
  /// Limits what the node sends and receives, e.g. "2mbit"; "" lifts it.
  void slow(int node, const std::string& rate);

  /// The processes on the node, as numbered on this machine.
  std::vector<pid_t> pids(int node) const;
  /// Those whose command line (words joined by blanks) contains `words`.
  std::vector<pid_t> pids(int node, const std::string& words) const;
  /// Sends a signal to each of them; returns how many there were.
  int kill(int node, const std::string& words, int signal);

  std::string host(int node) const;
  std::string address(int node) const;
  /// A folder that all nodes share; removed with the nodes.
  const std::string& folder() const { return folder_; }
  /// A program with ssh's argument form that runs commands on other nodes. It works on nodes; it finds the
  /// cluster by TCN_PREFIX, which `exec` sets and programs must pass on.
  std::string remote_shell() const;
  /// Starts a real sshd on each node, once; after `boot` a node has none. Returns the configuration file for
  /// `ssh -F FILE nodeK`. Where there is no sshd, skip_program_if with the reason.
  std::string start_sshd();

 private:
  friend class FakeSlurm;
  FakeNodes(int count, const std::string& script, const std::vector<std::string>& environment,
            const Options& options);
  Outcome script(const std::vector<std::string>& words, const char* name = "nodes.sh") const;
  void must(const std::vector<std::string>& words, const char* name = "nodes.sh") const;

  int count_;
  std::string prefix_, folder_, own_folders_;
  int keeper_in_ = -1, keeper_out_ = -1;
};

/// A real Slurm: one slurmd a node, slurmctld on a login node.
class FakeSlurm {
 public:
  struct Options {
    int nodes = 4, cpus = 4, gpus = 0;  ///< of each node; GPUs are null devices
    std::string cpus_of = "";           ///< "4 2 2": CPUs of node0, node1, node2; "": `cpus` each
    bool topology = false;              ///< two switches under a spine
    int slurmd_timeout_s = 120;         ///< until a silent node is DOWN; a busy one must not be
    int cred_expire_s = 5;              ///< a requeue is delayed by it; 120 on a default site
    std::string extra;                  ///< lines for slurm.conf
  };
  /// Returns when all nodes are idle, after about one second. Skips like FakeNodes.
  explicit FakeSlurm(const Options& options);

  /// The nodes, and the login node as the last of them. To boot one use this class's boot, which starts
  /// slurmd, too.
  FakeNodes& nodes() { return nodes_; }
  int login() const { return nodes_.count() - 1; }
  /// On the login node, with SLURM_CONF set: sbatch, squeue, scontrol, trainctl.
  Child exec(const std::vector<std::string>& argv, const std::vector<std::string>& environment = {});
  Outcome run(const std::vector<std::string>& argv, double seconds = 120,
              const std::vector<std::string>& environment = {});
  /// "SLURM_CONF=...", for programs that are started on other nodes.
  std::string configuration() const;

  void kill_slurmd(int node);
  void boot(int node);
  /// Fails the test when not that many nodes are idle within ten minutes.
  void wait_idle(int count);
  /// PENDING, RUNNING, COMPLETED ...; "" for an unknown job.
  std::string state(const std::string& job);
  /// Whether a job stays in this state: COMPLETED, FAILED, CANCELLED ...
  static bool is_end(const std::string& state);

 private:
  FakeNodes nodes_;
};

}  // namespace trainctl::test
