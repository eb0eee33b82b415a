// RankConnections are the connections of the ranks of one epoch to the agent of their node, and what each
// rank was last seen to do. One thread; the caller polls.
#pragma once
#include <poll.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/run/wire/activity_board.h"
#include "runtime/run/wire/channel.h"
#include "runtime/run/wire/flight_ring.h"
#include "runtime/run/wire/machine.h"

namespace trainctl {

class RankConnections {
 public:
  struct Options {
    std::string folder;  ///< of the epoch, in shared memory: for the socket and the activities
    std::string token;   ///< that ranks show
    int world_size = 1;
  };
  /// `events` gets a message for each line of a rank, for its hello and for the loss of its connection; the
  /// times that ranks report of a step go together, in one message. The epoch is not filled in. `clock` must
  /// outlive this object. Error(kPreflight).
  RankConnections(const Options& options, Clock& clock, MachineEvents events);

  /// The address to which ranks connect, and the file of their activities.
  const std::string& address() const { return server_.address(); }
  const std::string& board_path() const { return board_path_; }

  /// Adds every descriptor to poll for.
  void add_to(std::vector<pollfd>& fds) const { server_.add_to(fds); }
  /// Accepts, reads and writes. Call after every poll.
  void serve();
  /// Sends a line to a rank, or to every connected rank (-1).
  void send(int rank, const std::string& line);
  /// The state of every rank that has connected, also if its connection was lost since.
  std::vector<wire::RankDigest> digests() const;

  /// The ranks are to be killed: what ends from now on is no failure of its own.
  void before_kill();
  /// Whether before_kill() was called while a rank here had not reported its orderly end.
  bool has_failed() const { return has_failed_; }
  /// The rings of the ranks here, with what was seen of their ends.
  std::vector<FlightLog> flights(uint64_t epoch, const std::string& host) const;

 private:
  struct Rank {
    int pid = 0;
    double heard_s = 0;
    bool connected = false;
    bool done = false;                  ///< it has reported its orderly end
    mutable double stopped_unix_s = 0;  ///< when it was last seen to be stopped; 0: never
    std::optional<double> lost_unix_s;  ///< before any was killed from here
  };
  ControlServer::Handler handler();
  void lost(int rank, const std::string& why);
  void take_line(int rank, std::string&& line);
  void send_times();
  wire::RankDigest digest_of(int number, const Rank& rank) const;

  Clock& clock_;
  const MachineEvents events_;
  const std::string board_path_;
  const int world_size_;
  const std::unique_ptr<ActivityBoard> board_;  ///< null: it could not be made
  std::map<int, Rank> ranks_;
  bool is_killing_ = false, has_failed_ = false;
  std::optional<double> first_end_unix_s_;  ///< of a rank that was lost or is to be killed
  std::vector<wire::RankStepTimes> times_;  ///< not sent yet
  double times_since_s_ = 0;                ///< when the first of them came
  ControlServer server_;
};

}  // namespace trainctl
