// LocalMachine starts, connects, observes and ends the processes of one epoch on this machine.
//
// In an epoch, either mpirun or this process starts the ranks. mpirun runs on the leading node and requests
// its daemons on the other nodes through the supervisor. When this process starts the ranks, it is their PMIx
// server. Ranks connect to a socket in a scratch folder of the epoch. Every process has the epoch's mark in
// its environment; LocalMachine finds and kills processes by that mark. One thread; the caller polls.
#pragma once
#include <poll.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/machine/pmix/pmix_server.h"
#include "runtime/machine/process.h"
#include "runtime/machine/session.h"
#include "runtime/run/wire/activity_board.h"
#include "runtime/run/wire/channel.h"
#include "runtime/run/wire/fence_shares.h"
#include "runtime/run/wire/machine.h"
#include "runtime/run/wire/stream.h"

namespace trainctl {

class LocalMachine final : public Machine {
 public:
  struct Options {
    std::string run_directory;
    std::string host;  ///< the node's own host name
    /// Called before an epoch's ranks start, when none of an older one is left. Returns the MemoryFolder for
    /// them; "": they have none. May be empty.
    std::function<std::string(const wire::StartOrder&)> memory_for = {};
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
  struct Rank {
    int pid = 0;
    double heard_s = 0;
    bool connected = false;
  };
  struct Epoch;
  struct Child;
  void start(const wire::Message& message);
  void start_ranks();
  Environment environment_of_children() const;
  wire::RankDigest digest_of(int number, const Rank& rank) const;
  void spawn(const wire::Message& message);
  void watch_children();
  void pass_output(Child& child);
  void watch_server();
  void watch_remotes();
  void take_from_pmix();
  void reap_strangers();
  void kill_step();
  void emit(wire::Kind kind, int rank, int64_t number, std::string text = "", std::string payload = "");

  Options options_;
  Clock& clock_;
  MachineEvents events_;
  std::unique_ptr<Epoch> epoch_;
  bool hold_output_ = false;
  // News from libpmix's thread.
  std::mutex pmix_mutex_;
  std::vector<wire::Message> pmix_news_;
  int pmix_fd_ = -1;
  std::optional<SessionFolders> pmix_folders_;  ///< the server of this process outlives an epoch
  std::unique_ptr<PmixServer> pmix_;
};

}  // namespace trainctl
