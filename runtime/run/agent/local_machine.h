// LocalMachine starts, connects, observes and ends the processes of one epoch on this machine.
//
// In an epoch, either mpirun or this process starts the ranks. mpirun runs on the leading node and requests
// its daemons on the other nodes through the supervisor. When this process starts the ranks, it is their PMIx
// server. Ranks connect to a socket in a scratch folder of the epoch. Every process has the epoch's mark in
// its environment; LocalMachine finds and kills processes by that mark. One thread; the caller polls.
#pragma once
#include <poll.h>

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/machine/pmix/pmix_news.h"
#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/session.h"
#include "runtime/run/agent/epoch_processes.h"
#include "runtime/run/wire/machine.h"

namespace trainctl {

class LocalMachine final : public Machine {
 public:
  struct Options {
    std::string run_directory;
    std::string host;  ///< the node's own host name
    /// Called before an epoch's ranks start, when none of an older one is left. Returns the MemoryFolder for
    /// them; "": they have none. May be empty.
    std::function<std::string(uint64_t epoch, const wire::StartOrder&)> memory_for = {};
    /// Called with the rings of the ranks here when an epoch in which one failed is over, before they are
    /// removed: the name of a file in the folder of failures, and its text. The epoch is reported gone when
    /// the result is there, or two seconds later. May be empty, and so may the result.
    std::function<std::future<void>(const std::string& name, std::string&& text)> leave_rings = {};
  };
  /// `clock`, and all that `events` refers to, must outlive this object.
  LocalMachine(Options options, Clock& clock, MachineEvents events);
  /// Kills the processes that are left; sends no events.
  ~LocalMachine() override;
  LocalMachine(const LocalMachine&) = delete;
  LocalMachine& operator=(const LocalMachine&) = delete;

  void order(const wire::Message& message) override;
  /// Adds every descriptor to poll for.
  void add_to(std::vector<pollfd>& fds) const;
  /// Reads messages and output, reaps ended processes, and continues a kill. Call after every poll.
  void serve();
  /// When serve must be called at the latest.
  double deadline_s() const;
  /// The epoch of the processes here; nullopt if there are none.
  std::optional<uint64_t> epoch() const;
  /// While `hold` is true, output of processes stays in their pipes. Use it while the supervisor cannot keep
  /// up.
  void hold_output(bool hold) { hold_output_ = hold; }
  /// Begins to kill all processes of the epoch; serve() sends `gone` when none is left or the limit has
  /// passed.
  void kill_all();
  /// The fence shares that a new supervisor needs for the current epoch.
  std::deque<wire::Message> fence_shares() const;
  /// The state of every rank that has connected, also if its connection was lost since.
  std::vector<wire::RankDigest> digests() const;

 private:
  struct Epoch;
  void start(const wire::Message& message);
  void start_ranks();
  void begin_pmix(const PmixServer::Epoch& layout);
  Environment environment_of_children() const;
  EpochProcesses::Handler process_events();
  void take_from_pmix();
  void reap_strangers();
  void go_on_killing();
  std::future<void> leave_rings() const;
  void emit(wire::Message&& message);

  Options options_;
  Clock& clock_;
  MachineEvents events_;
  std::unique_ptr<Epoch> epoch_;
  bool hold_output_ = false;
  // The server of this process outlives an epoch.
  PmixNews pmix_news_;
  std::optional<SessionFolders> pmix_folders_;
  std::unique_ptr<PmixServer> pmix_;
};

}  // namespace trainctl
