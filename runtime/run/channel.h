// The supervisor's end of the control channel: a listener on the loopback and one connection a rank.
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

#include "runtime/run/protocol.h"

namespace trainctl {

class ControlServer {
 public:
  struct Handler {
    std::function<void(const protocol::Hello&)> hello;
    std::function<void(int rank, protocol::Up&&)> message;
    /// The rank's connection has ended, or carried nonsense (`why`).
    std::function<void(int rank, const std::string& why)> lost;
  };
  /// Listens on a free port of 127.0.0.1. Error(kLauncher).
  ControlServer(std::string token, int ranks, Handler handler);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  int port() const { return port_; }
  /// Adds every descriptor to poll for.
  void add_to(std::vector<pollfd>& fds) const;
  /// Accepts, reads and writes whatever is ready. Call after every poll; cheap when nothing is.
  void serve();
  void send_to(int rank, const protocol::Down& message);
  void send_all(const protocol::Down& message);

 private:
  struct Connection {
    int fd = -1, rank = -1;
    protocol::LineBuffer in;
    std::string out;
    size_t received = 0;
  };
  void accept_all();
  void read_from(Connection& connection);
  void take_line(Connection& connection, const std::string& line);
  void flush(Connection& connection);
  void drop(Connection& connection, const std::string& why);

  std::string token_;
  int ranks_, listen_fd_ = -1, port_ = 0;
  Handler handler_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

/// 32 hex digits from the kernel's random numbers.
std::string random_token();

}  // namespace trainctl
