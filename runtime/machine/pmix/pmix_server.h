// The PMIx server of one machine: what mpirun's daemon is to the ranks of a node, inside the node agent.
//
// MPI_Init of a rank asks a local PMIx server who the others are and exchanges addresses through it. With
// that server in the agent, the agent starts the ranks itself (posix_spawn with environment_of(rank)), and
// neither mpirun nor its daemons are needed:
//
//   PmixServer server(...);                  early: it forks
//   server.begin({epoch, mark, hosts, ...})  on every host of the epoch, with the same hosts, ranks and mark
//   spawn each local rank with environment_of(rank)
//   fence(epoch, data) -> exchange among the hosts -> finish_fence(epoch, all data)     in MPI_Init and
//   Finalize server.end()                             after the last rank of the epoch is gone, however it
//   ended
//
// libpmix runs in a process of its own for each epoch (runtime/machine/pmix/pmix_service.h) and ends with it. A
// rank that dies is noticed by its parent (waitpid), not here.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/machine/process.h"

namespace trainctl {

/// "" if libpmix can be loaded here; otherwise one sentence that says why ranks cannot be started through
/// PMIx. Whether the ranks' MPI library goes along with it only a started rank can show.
std::string pmix_problem();

/// Thread rule: construct before the first thread starts; construct, begin, environment_of, end and destroy
/// on one thread; finish_fence on any.
class PmixServer {
 public:
  /// Called on a thread of this object: each must only pass the news on, and must not call the server, throw
  /// or wait. None of an epoch comes after its end().
  struct Events {
    /// Every rank of this host, except for those that libpmix knows to be dead, has entered a fence that
    /// spans hosts; `data` is this host's share. Answer with finish_fence.
    std::function<void(uint64_t epoch, std::string data)> fence;
    /// A rank has called MPI_Abort(status). Its process ends by itself; the others wait for it.
    std::function<void(uint64_t epoch, int rank, int status, std::string message)> aborted;
    /// Text for people, mostly from MPI in the ranks: OpenMPI says here why MPI_Init failed.
    std::function<void(std::string text)> log;
  };
  struct Options {
    std::string scratch_folder;        ///< of this process, exists; libpmix and MPI put their files below it
    std::string shared_memory_folder;  ///< the same in /dev/shm, for the segments of ranks of one host
    std::string host_name;             ///< this host, as it is called in Epoch::hosts
    Events events;
  };
  /// Error(kLauncher) if libpmix cannot be loaded or started.
  explicit PmixServer(Options options);
  ~PmixServer();
  PmixServer(const PmixServer&) = delete;
  PmixServer& operator=(const PmixServer&) = delete;

  struct Epoch {
    uint64_t epoch = 0;
    std::string mark;  ///< of the run; with the epoch it makes a name that no other epoch has had
    std::vector<std::string> hosts;
    /// 0 .. world_size - 1, each once; at least one on each host. Local ranks are counted in the order of the
    /// ranks, whatever the order here.
    std::vector<std::vector<int>> ranks_of_host;
    int this_host = 0;
  };
  /// Ends the epoch before, if end() was not called, and makes libpmix expect the local ranks.
  /// Error(kLauncher).
  void begin(const Epoch& epoch);
  /// What the process of a local rank of the current epoch gets in addition to (or instead of) this process's
  /// variables, each once. MPI's own settings (transport, yielding) are the caller's.
  Environment environment_of(int rank);
  /// Lets the ranks out of the fence. `data`: all hosts' shares, concatenated in the order of Epoch::hosts.
  /// Without a fence of that epoch (it has ended meanwhile) nothing happens.
  void finish_fence(uint64_t epoch, std::string data);
  /// All local ranks of the epoch are gone: forgets them and removes what they left in the two folders.
  /// Error(kLauncher).
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl
