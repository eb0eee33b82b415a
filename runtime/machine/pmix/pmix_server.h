// PmixServer is the PMIx server of one machine, in the node's agent. It replaces mpirun's daemon.
//
// MPI_Init of a rank asks a local PMIx server for the other ranks and exchanges addresses through it. With
// the server in the agent, the agent can start the ranks itself (posix_spawn with environment_of(rank)),
// without mpirun and its daemons:
//
//   PmixServer server(...);                  early: it forks
//   server.begin({epoch, mark, hosts, ...})  on every host of the epoch, with the same hosts, ranks and mark
//   spawn each local rank with environment_of(rank)
//   fence(epoch, data) -> exchange among the hosts -> finish_fence(epoch, all data)   in MPI_Init and MPI_Finalize
//   server.end()                             after the last rank of the epoch has ended in any way
//
// Each epoch has its own process for libpmix (runtime/machine/pmix/pmix_service.h), which ends with the
// epoch. The server does not detect the death of a rank; the rank's parent does (waitpid).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/problem.h"
#include "runtime/machine/process.h"

namespace trainctl {

/// None if libpmix can be loaded on this machine; otherwise one sentence that says why ranks cannot be started
/// through PMIx. Only a start can show whether the ranks' MPI library works with it (pmix_probe.h).
Problem pmix_problem();

/// Thread rule: construct it before the first thread starts. Construct, begin, environment_of, end and
/// destroy are called on one thread; finish_fence on any thread.
class PmixServer {
 public:
  /// Callbacks on a thread of this object. They must not call the server, throw or wait. No callback of an
  /// epoch comes after its end().
  struct Events {
    /// All ranks of this host, except those that libpmix knows to be dead, have entered a fence that spans
    /// hosts. `data` is this host's share. Answer with finish_fence.
    std::function<void(uint64_t epoch, std::string data)> fence;
    /// A rank has called MPI_Abort(status). Its process ends by itself; the other ranks keep waiting for it.
    std::function<void(uint64_t epoch, int rank, int status, std::string message)> aborted;
    /// A text for people, mostly from MPI in the ranks, for example why MPI_Init failed.
    std::function<void(std::string text)> log;
  };
  struct Options {
    /// Existing folder of this process; libpmix and MPI put files below it
    std::string scratch_folder;
    /// Existing folder in /dev/shm, for shared memory of ranks of one host
    std::string shared_memory_folder;
    std::string host_name;             ///< name of this host in Epoch::hosts
    Events events;
  };
  /// Error(kLauncher) if libpmix cannot be loaded or started.
  explicit PmixServer(Options options);
  ~PmixServer();
  PmixServer(const PmixServer&) = delete;
  PmixServer& operator=(const PmixServer&) = delete;

  struct Epoch {
    uint64_t epoch = 0;
    std::string mark;  ///< mark of the attempt; mark and epoch together give a unique name
    std::vector<std::string> hosts;
    /// The ranks 0 .. world_size - 1, each once, at least one on each host. Local ranks are numbered by
    /// ascending rank, not by the order in this list.
    std::vector<std::vector<int>> ranks_of_host;
    int this_host = 0;  ///< index of this host in `hosts`
  };
  /// Begins an epoch: libpmix then expects its local ranks. Ends the previous epoch if end() was not called.
  /// Error(kLauncher).
  void begin(const Epoch& epoch);
  /// The variables for the process of a local rank of the current epoch, each once. They replace or extend
  /// this process's variables. The caller adds MPI's own settings (transport, yielding).
  Environment environment_of(int rank);
  /// Lets the ranks leave the fence. `data`: the shares of all hosts, concatenated in the order of
  /// Epoch::hosts. Does nothing if the epoch has ended.
  void finish_fence(uint64_t epoch, std::string data);
  /// Ends the epoch and removes the files of its ranks from the two folders. All its local ranks must have
  /// ended. Error(kLauncher).
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl
