// The processes of one epoch on this machine: starts them, connects them, says how they are, ends them.
//
// In an epoch either mpirun starts the ranks (on the leading node it runs here; on the others it asks,
// through the supervisor, for its daemon), or this process does, as the PMIx server of its ranks. Ranks
// connect to a socket in a folder of their own. Every process carries the epoch's mark in its environment and
// is ended by it. One thread; the caller polls.
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
    std::string host;  ///< as the node calls itself
  };
  /// `clock` and what `events` refers to must outlive this.
  LocalMachine(Options options, Clock& clock, MachineEvents events);
  /// Kills what is left, without events.
  ~LocalMachine() override;
  LocalMachine(const LocalMachine&) = delete;
  LocalMachine& operator=(const LocalMachine&) = delete;

  void order(const wire::Message& message) override;
  /// Adds every descriptor to poll for.
  void add_to(std::vector<pollfd>& fds) const;
  /// Reads, reaps and kills whatever is due. Call after every poll.
  void serve();
  /// When serve must be called at the latest.
  double deadline_s() const;
  std::optional<uint64_t> epoch() const;
  /// While it holds, the output of processes stays in their pipes: its receiver cannot keep up.
  void hold_output(bool hold) { hold_output_ = hold; }
  /// Kills everything of the epoch; serve() reports `gone` once nothing is left.
  void kill_all();
  /// Of the epoch that runs here: what a new supervisor needs to answer its fences.
  std::deque<wire::Message> fence_shares() const;
  /// Every rank that has connected.
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
