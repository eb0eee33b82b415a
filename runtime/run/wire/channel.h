// The agent's end of the control channel: a listener for the ranks of its node and one connection a rank.
//
// One thread, non-blocking; the caller polls the descriptors. A connection counts once it has said hello with
// the token.
#pragma once
#include <poll.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/run/wire/protocol.h"

namespace trainctl {

class ControlServer {
 public:
  struct Handler {
    std::function<void(const protocol::Hello&)> hello;
    /// A heartbeat; it goes no further than the node.
    std::function<void(int rank)> beat;
    /// Any other message, as a line without its newline; only its kind has been looked at.
    std::function<void(int rank, std::string&& line)> line;
    /// The rank's connection has ended, or carried nonsense (`why`).
    std::function<void(int rank, const std::string& why)> lost;
  };
  /// Listens on `address` ("unix:PATH", or "127.0.0.1:0" for a free port). Error(kPreflight).
  ControlServer(const std::string& address, std::string token, int ranks, Handler handler);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// As ranks connect to it.
  const std::string& address() const { return address_; }
  /// Adds every descriptor to poll for.
  void add_to(std::vector<pollfd>& fds) const;
  /// Accepts, reads and writes whatever is ready. Call after every poll; cheap when nothing is.
  void serve();
  /// A line with its newline; to a rank that is not connected it is lost.
  void send_to(int rank, const std::string& line);
  void send_all(const std::string& line);

 private:
  struct Connection {
    int fd = -1, rank = -1;
    protocol::LineBuffer in;
    std::string out;
    size_t received = 0;
  };
  void accept_all();
  void read_from(Connection& connection);
  void take_line(Connection& connection, std::string&& line);
  void flush(Connection& connection);
  void drop(Connection& connection, const std::string& why);

  std::string token_, address_;
  int ranks_, listen_fd_ = -1;
  Handler handler_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

}  // namespace trainctl
