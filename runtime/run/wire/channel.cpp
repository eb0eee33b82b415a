#include "runtime/run/wire/channel.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/run/wire/stream.h"

namespace trainctl {
namespace {

/// A stranger may not make us keep more than this before it has shown the token.
constexpr size_t kMostBytesBeforeHello = 4096;

}  // namespace

ControlServer::ControlServer(const std::string& address, std::string token, int ranks, Handler handler)
    : token_(std::move(token)), ranks_(ranks), listen_fd_(listen_on(address)), handler_(std::move(handler)) {
  address_ = address_of(listen_fd_);
}

ControlServer::~ControlServer() {
  for (const auto& connection : connections_)
    if (connection->fd >= 0) ::close(connection->fd);
  ::close(listen_fd_);
}

void ControlServer::add_to(std::vector<pollfd>& fds) const {
  fds.push_back({.fd = listen_fd_, .events = POLLIN, .revents = 0});
  for (const auto& c : connections_)
    if (c->fd >= 0)
      fds.push_back({.fd = c->fd, .events = short(POLLIN | (c->out.empty() ? 0 : POLLOUT)), .revents = 0});
}

void ControlServer::accept_all() {
  while (true) {
    const int fd = accept_from(listen_fd_);
    if (fd < 0) return;
    connections_.push_back(std::make_unique<Connection>());
    connections_.back()->fd = fd;
  }
}

void ControlServer::serve() {
  accept_all();
  // By index: a handler may cause sends, never new connections.
  for (size_t i = 0; i < connections_.size(); ++i) {
    flush(*connections_[i]);
    read_from(*connections_[i]);
  }
  std::erase_if(connections_, [](const auto& c) { return c->fd < 0; });
}

void ControlServer::read_from(Connection& c) {
  char buffer[65536];
  while (c.fd >= 0) {
    const ssize_t n = ::recv(c.fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return drop(c, n == 0 ? "the connection was closed" : std::strerror(errno));
    c.received += size_t(n);
    if (c.rank < 0 && c.received > kMostBytesBeforeHello) return drop(c, "no hello");
    c.in.append(buffer, size_t(n));
    try {
      while (c.fd >= 0) {
        auto line = c.in.next();
        if (!line) break;
        take_line(c, std::move(*line));
      }
    } catch (const Error& error) {
      drop(c, error.what());
    }
  }
}

void ControlServer::take_line(Connection& c, std::string&& line) {
  if (c.rank >= 0) {
    if (protocol::is_beat(line)) return handler_.beat(c.rank);
    return handler_.line(c.rank, std::move(line));
  }
  const protocol::Up up = protocol::decode_up(line);
  const bool good =
      up.hello && same_token(up.hello->token, token_) && up.hello->rank >= 0 && up.hello->rank < ranks_;
  if (!good) return drop(c, "not a rank of this run");
  for (const auto& other : connections_)
    if (other->rank == up.hello->rank && other->fd >= 0) return drop(c, "this rank is connected already");
  c.rank = up.hello->rank;
  send_to(c.rank, protocol::encode(protocol::Down{.kind = protocol::Down::welcome}));
  handler_.hello(*up.hello);
}

void ControlServer::flush(Connection& c) {
  while (c.fd >= 0 && !c.out.empty()) {
    const ssize_t n = ::send(c.fd, c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // full, or broken: then reading will say so
    c.out.erase(0, size_t(n));
  }
}

void ControlServer::drop(Connection& c, const std::string& why) {
  if (c.fd < 0) return;
  ::close(c.fd);
  c.fd = -1;
  if (c.rank >= 0) handler_.lost(c.rank, why);
}

void ControlServer::send_to(int rank, const std::string& line) {
  for (const auto& c : connections_) {
    if (c->rank != rank || c->fd < 0) continue;
    c->out += line;
    flush(*c);
  }
}

void ControlServer::send_all(const std::string& line) {
  for (const auto& c : connections_) {
    if (c->rank < 0 || c->fd < 0) continue;
    c->out += line;
    flush(*c);
  }
}

}  // namespace trainctl
