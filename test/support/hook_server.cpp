#include "test/support/hook_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace trainctl::test {

HookServer::HookServer(Answers answers) : answers_(answers) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener_, 16) != 0 ||
      ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    std::abort();
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

HookServer::~HookServer() {
  ends_ = true;
  thread_.join();
  ::close(listener_);
  for (const int connection : held_) ::close(connection);
}

std::string HookServer::url() const { return fmt::format("http://127.0.0.1:{}/hook?token=secret", port_); }

void HookServer::answer_with(std::vector<int> statuses) {
  const std::lock_guard lock(mutex_);
  statuses_ = std::move(statuses);
}

std::vector<std::string> HookServer::bodies() const {
  const std::lock_guard lock(mutex_);
  return bodies_;
}

void HookServer::serve() {
  while (!ends_) {
    pollfd fd{.fd = listener_, .events = POLLIN, .revents = 0};
    if (::poll(&fd, 1, 20) != 1) continue;
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    if (answers_ == Answers::never) {
      held_.push_back(connection);
      continue;
    }
    answer(connection);
    ::close(connection);
  }
}

void HookServer::answer(int connection) {
  std::string text;
  size_t length = 0, body = std::string::npos;
  for (char part[4096]; body == std::string::npos || text.size() < body + length;) {
    pollfd fd{.fd = connection, .events = POLLIN, .revents = 0};
    while (!ends_ && ::poll(&fd, 1, 20) == 0) continue;
    if (ends_) return;
    const ssize_t bytes = ::read(connection, part, sizeof part);
    if (bytes <= 0) return;
    text.append(part, size_t(bytes));
    const size_t end = text.find("\r\n\r\n");
    if (end == std::string::npos) continue;
    body = end + 4;
    const size_t at = text.find("Content-Length: ");
    length = at == std::string::npos ? 0 : size_t(std::atoll(text.c_str() + at + 16));
  }
  int status = 200;
  {
    const std::lock_guard lock(mutex_);
    bodies_.push_back(text.substr(body));
    if (!statuses_.empty()) {
      status = statuses_.front();
      statuses_.erase(statuses_.begin());
    }
  }
  const std::string reply =
      fmt::format("HTTP/1.1 {} Answer\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status);
  (void)!::write(connection, reply.data(), reply.size());
}

}  // namespace trainctl::test
