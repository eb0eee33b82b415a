// ControlServer is the agent's end of the control channel: a listener and one connection for each rank of its
// node.
//
// One thread, non-blocking; the caller polls the descriptors. A connection belongs to a rank after its hello
// with the token.
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
    /// A heartbeat. The agent does not pass it on.
    std::function<void(int rank)> beat;
    /// Any other message, as a line without its newline. The server has checked only its kind.
    std::function<void(int rank, std::string&& line)> line;
    /// The rank's connection was closed, or was dropped after an invalid message. `why`: one phrase.
    std::function<void(int rank, const std::string& why)> lost;
  };
  /// Listens on `address` ("unix:PATH", or "127.0.0.1:0" for a free port). Error(kPreflight).
  ControlServer(const std::string& address, std::string token, int ranks, Handler handler);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// The address to which ranks connect.
  const std::string& address() const { return address_; }
  /// Adds every descriptor to poll for.
  void add_to(std::vector<pollfd>& fds) const;
  /// Accepts, reads and writes on every ready descriptor. Call after every poll.
  void serve();
  /// Sends a line, which ends with a newline. Drops it if the rank is not connected.
  void send_to(int rank, const std::string& line);
  /// Sends a line to every connected rank.
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
