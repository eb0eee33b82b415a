#include "runtime/supervise/nodes/own_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "runtime/base/error.h"

namespace trainctl {

std::string own_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  if (rc != 0 || !found)
    throw Error(ErrorCode::kPreflight,
                fmt::format("the name {} does not resolve: {}; give an address, or repair the name service",
                            host, ::gai_strerror(rc)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  socklen_t size = sizeof own;
  // Connecting a datagram socket only chooses the way.
  const bool ok = ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                  ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  ::close(fd);
  if (!ok) throw Error(ErrorCode::kPreflight, fmt::format("no network leads from here to {}", host));
  char text[INET_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET, &own.sin_addr, text, sizeof text);
  return text;
}

std::string address_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || !found) return "";
  char text[INET_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr, text, sizeof text);
  ::freeaddrinfo(found);
  return text;
}

bool is_this_machine(const std::string& host) {
  char own[256] = "";
  ::gethostname(own, sizeof own - 1);
  if (host == own || host == "localhost" || host == "127.0.0.1") return true;
  addrinfo hints{};
  hints.ai_family = AF_INET;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || !found) return false;
  const in_addr address = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr;
  ::freeaddrinfo(found);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  bool mine = false;
  for (const ifaddrs* i = list; i; i = i->ifa_next)
    mine = mine || (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
                    reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr.s_addr == address.s_addr);
  ::freeifaddrs(list);
  return mine;
}

}  // namespace trainctl
