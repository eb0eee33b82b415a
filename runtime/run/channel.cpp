#include "runtime/run/channel.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

/// A stranger may not make us keep more than this before it has shown the token.
constexpr size_t kMostBytesBeforeHello = 4096;

/// Compares without telling by the time taken how much agreed.
bool same_token(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= unsigned(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

std::string random_token() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != ssize_t(sizeof bytes))
    throw Error(ErrorCode::kLauncher,
                fmt::format("the kernel gave no random numbers: {}", std::strerror(errno)));
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

ControlServer::ControlServer(std::string token, int ranks, Handler handler)
    : token_(std::move(token)), ranks_(ranks), handler_(std::move(handler)) {
  listen_fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (listen_fd_ < 0 || ::bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listen_fd_, 1024) != 0 ||
      ::getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int reason = errno;
    if (listen_fd_ >= 0) ::close(listen_fd_);
    throw Error(
        ErrorCode::kPreflight,
        fmt::format("cannot open a port on 127.0.0.1 for the control channel: {}", std::strerror(reason)));
  }
  port_ = ntohs(address.sin_port);
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
    const int fd = ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
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
        const auto line = c.in.next();
        if (!line) break;
        take_line(c, *line);
      }
    } catch (const Error& error) {
      drop(c, error.what());
    }
  }
}

void ControlServer::take_line(Connection& c, const std::string& line) {
  protocol::Up up = protocol::decode_up(line);
  if (c.rank >= 0) return handler_.message(c.rank, std::move(up));
  const bool good =
      up.hello && same_token(up.hello->token, token_) && up.hello->rank >= 0 && up.hello->rank < ranks_;
  if (!good) return drop(c, "not a rank of this run");
  for (const auto& other : connections_)
    if (other->rank == up.hello->rank && other->fd >= 0) return drop(c, "this rank is connected already");
  c.rank = up.hello->rank;
  send_to(c.rank, {.kind = protocol::Down::welcome});
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

void ControlServer::send_to(int rank, const protocol::Down& message) {
  for (const auto& c : connections_) {
    if (c->rank != rank || c->fd < 0) continue;
    c->out += protocol::encode(message);
    flush(*c);
  }
}

void ControlServer::send_all(const protocol::Down& message) {
  for (const auto& c : connections_) {
    if (c->rank < 0 || c->fd < 0) continue;
    c->out += protocol::encode(message);
    flush(*c);
  }
}

}  // namespace trainctl
