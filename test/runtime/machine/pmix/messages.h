// What the tests and their hosts share: lines with data over a Unix socket, MPI's settings, processes.
#pragma once
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/machine/process.h"

namespace trainctl {

struct Message {
  std::string line;  ///< without the size
  std::string data;
};

/// send is safe from any thread, receive is for one.
class MessageSocket {
 public:
  explicit MessageSocket(int fd) : fd_(fd) {}
  ~MessageSocket() { ::close(fd_); }
  MessageSocket(const MessageSocket&) = delete;
  MessageSocket& operator=(const MessageSocket&) = delete;
  int fd() const { return fd_; }

  void send(const std::string& line, const std::string& data = "") {
    const std::string text = fmt::format("{} {}\n{}", line, data.size(), data);
    const std::lock_guard lock(mutex_);
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      sent += size_t(n);
    }
  }

  /// A message that has been read whole.
  std::optional<Message> next() {
    const size_t end = buffer_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    const size_t space = buffer_.rfind(' ', end);
    const size_t size = std::stoul(buffer_.substr(space + 1, end - space - 1));
    if (buffer_.size() < end + 1 + size) return std::nullopt;
    Message message{buffer_.substr(0, space), buffer_.substr(end + 1, size)};
    buffer_.erase(0, end + 1 + size);
    return message;
  }

  /// Nothing at the end of the connection; throws after `seconds` without a whole message.
  std::optional<Message> receive(double seconds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (true) {
      if (auto message = next()) return message;
      const std::chrono::duration<double, std::milli> left = deadline - std::chrono::steady_clock::now();
      if (left.count() <= 0) throw std::runtime_error("no message in time");
      pollfd fd = {fd_, POLLIN, 0};
      if (::poll(&fd, 1, int(left.count()) + 1) <= 0) continue;
      char bytes[65536];
      const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return std::nullopt;
      buffer_.append(bytes, size_t(n));
    }
  }

 private:
  const int fd_;
  std::mutex mutex_;
  std::string buffer_;
};

/// Children that the main thread of `pid` has started.
inline std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/task/{}/children", pid, pid));
  return {std::istream_iterator<pid_t>(file), std::istream_iterator<pid_t>()};
}

/// For more ranks than cores on one machine.
inline Environment mpi_settings() {
  return {{"OMPI_MCA_mpi_yield_when_idle", "1"},
          {"OMPI_MCA_pml", "ob1"},
          {"OMPI_MCA_btl", "self,vader,tcp"},
          {"OMPI_MCA_btl_tcp_if_include", "lo"},
          {"OMPI_MCA_hwloc_base_binding_policy", "none"},
          {"OMP_NUM_THREADS", "1"}};
}

inline sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

inline int connect_messages(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = unix_address(path);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect to " + path);
  return fd;
}

}  // namespace trainctl
