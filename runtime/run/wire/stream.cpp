#include "runtime/run/wire/stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

constexpr const char* kUnix = "unix:";

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family = AF_INET;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Address unix_address(const std::string& path) {
  Address address;
  auto& un = reinterpret_cast<sockaddr_un&>(address.storage);
  if (path.size() >= sizeof un.sun_path)
    throw Error(ErrorCode::kPreflight, fmt::format("the path of a socket is longer than {} bytes: {}",
                                                   sizeof un.sun_path - 1, path));
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path, path.c_str(), path.size() + 1);
  address.size = sizeof un;
  address.family = AF_UNIX;
  return address;
}

Address parse_address(const std::string& text) {
  if (text.starts_with(kUnix)) return unix_address(text.substr(5));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos)
    throw Error(ErrorCode::kLauncher,
                fmt::format("the address \"{}\" is neither HOST:PORT nor unix:PATH", text));
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(text.substr(0, colon).c_str(), text.substr(colon + 1).c_str(), &hints, &found);
  if (rc != 0 || !found)
    throw Error(ErrorCode::kLauncher, fmt::format("the address {} does not resolve: {}",
                                                  text.substr(0, colon), ::gai_strerror(rc)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = socklen_t(found->ai_addrlen);
  return address;
}

void prepare(int fd, int family) {
  if (family != AF_INET) return;
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

std::string text_of(const in_addr& address) {
  char text[INET_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET, &address, text, sizeof text);
  return text;
}

}  // namespace

int listen_on(const std::string& text) {
  const Address address = parse_address(text);
  const int fd = ::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;  // a port that was given is free again as soon as its last supervisor has ended
  if (fd >= 0 && address.family == AF_INET) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // Thousands of agents may come at once; the system cuts this to its own limit.
  if (fd < 0 || ::bind(fd, address.get(), address.size) != 0 || ::listen(fd, 8192) != 0) {
    const int reason = errno;
    if (fd >= 0) ::close(fd);
    throw Error(ErrorCode::kPreflight, fmt::format("cannot listen on {}: {}", text, std::strerror(reason)));
  }
  return fd;
}

std::string address_of(int listener) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&storage), &size);
  if (storage.ss_family == AF_UNIX)
    return kUnix + std::string(reinterpret_cast<sockaddr_un&>(storage).sun_path);
  const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
  return fmt::format("{}:{}", text_of(in.sin_addr), ntohs(in.sin_port));
}

int connect_to(const std::string& text, double limit_s) {
  const Address address = parse_address(text);
  const int fd = ::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int reason = fd < 0 ? errno : 0;
  if (fd >= 0 && ::connect(fd, address.get(), address.size) != 0) {
    reason = errno;
    if (reason == EINPROGRESS) {
      pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
      socklen_t size = sizeof reason;
      if (::poll(&wait, 1, int(limit_s * 1000)) <= 0)
        reason = ETIMEDOUT;
      else
        ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &size);
    }
  }
  if (reason == 0) {
    prepare(fd, address.family);
    return fd;
  }
  if (fd >= 0) ::close(fd);
  throw Error(ErrorCode::kLauncher, fmt::format("cannot reach {}: {}", text, std::strerror(reason)));
}

int accept_from(int listener) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  const int fd =
      ::accept4(listener, reinterpret_cast<sockaddr*>(&storage), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) prepare(fd, storage.ss_family);
  return fd;
}

LocalEnd local_end_of(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0 || storage.ss_family != AF_INET)
    return {};
  const in_addr own = reinterpret_cast<const sockaddr_in&>(storage).sin_addr;
  LocalEnd end{.address = text_of(own)};
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return end;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !i->ifa_netmask) continue;
    const in_addr address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
    if (address.s_addr != own.s_addr) continue;
    const in_addr mask = reinterpret_cast<const sockaddr_in*>(i->ifa_netmask)->sin_addr;
    end.network = fmt::format("{}/{}", text_of({own.s_addr & mask.s_addr}), std::popcount(mask.s_addr));
    end.interface = i->ifa_name;
  }
  return end;
}

std::string random_token() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != ssize_t(sizeof bytes))
    throw Error(ErrorCode::kLauncher,
                fmt::format("the kernel gave no random numbers: {}", std::strerror(errno)));
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

bool same_token(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= unsigned(a[i] ^ b[i]);
  return difference == 0;
}

Stream::Stream(int fd, size_t most_bytes) : fd_(fd), most_bytes_(most_bytes) {}

Stream::~Stream() {
  if (fd_ >= 0) ::close(fd_);
}

void Stream::close(const std::string& why) {
  if (fd_ < 0) return;
  ::close(fd_);
  fd_ = -1;
  problem_ = why;
  out_.clear();
  sent_ = 0;
}

void Stream::send(const wire::Message& message) {
  if (fd_ < 0) return;
  out_ += wire::encode(message);
  flush();
  if (out_.size() - sent_ > most_bytes_)
    close(fmt::format("{} bytes wait for a peer that does not read", out_.size() - sent_));
}

void Stream::flush() {
  while (fd_ >= 0 && sent_ < out_.size()) {
    const ssize_t n = ::send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) return close(std::strerror(errno));
    sent_ += size_t(n);
  }
  // Not a byte at a time: what is kept would be moved again and again.
  if (sent_ >= out_.size() / 2) forget_sent();
}

void Stream::forget_sent() {
  out_.erase(0, sent_);
  sent_ = 0;
}

std::vector<wire::Message> Stream::read() {
  std::vector<wire::Message> messages;
  char buffer[65536];
  // A peer that never stops sending must not keep us here.
  for (int turns = 0; turns < 64 && fd_ >= 0; ++turns) {
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) {
      close(n == 0 ? "the connection was closed" : std::strerror(errno));
      break;
    }
    received_ += uint64_t(n);
    reader_.append(buffer, size_t(n));
    try {
      while (auto message = reader_.next()) messages.push_back(std::move(*message));
    } catch (const Error& error) {
      close(error.what());
    }
  }
  return messages;
}

}  // namespace trainctl
