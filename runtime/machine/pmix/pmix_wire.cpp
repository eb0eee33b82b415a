#include "runtime/machine/pmix/pmix_wire.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"

namespace trainctl {
namespace {

struct Head {
  uint64_t size;
  PmixMessageKind kind;
};

bool send_all(int socket, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::send(socket, data, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    size -= size_t(n);
  }
  return true;
}

bool receive_all(int socket, char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::recv(socket, data, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    size -= size_t(n);
  }
  return true;
}

}  // namespace

bool send_message(int socket, PmixMessageKind kind, std::string_view body) {
  Head head;
  std::memset(&head, 0, sizeof head);
  head.size = body.size();
  head.kind = kind;
  return send_all(socket, reinterpret_cast<const char*>(&head), sizeof head) &&
         send_all(socket, body.data(), body.size());
}

std::optional<PmixMessage> receive_message(int socket) {
  Head head;
  if (!receive_all(socket, reinterpret_cast<char*>(&head), sizeof head)) return std::nullopt;
  PmixMessage message{head.kind, std::string(head.size, '\0')};
  if (!receive_all(socket, message.body.data(), message.body.size())) return std::nullopt;
  return message;
}

void PmixBody::put(int64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof number); }

void PmixBody::put(std::string_view text) {
  put(int64_t(text.size()));
  bytes_ += text;
}

void PmixBody::put(const PmixServer::Epoch& epoch) {
  put(int64_t(epoch.epoch));
  put(epoch.mark);
  put(int64_t(epoch.this_host));
  put(int64_t(epoch.hosts.size()));
  for (const std::string& host : epoch.hosts) put(host);
  put(int64_t(epoch.ranks_of_host.size()));
  for (const std::vector<int>& ranks : epoch.ranks_of_host)
    put(std::string_view(reinterpret_cast<const char*>(ranks.data()), ranks.size() * sizeof(int)));
}

void PmixBody::put(const Environment& environment) {
  put(int64_t(environment.size()));
  for (const auto& [name, value] : environment) {
    put(name);
    put(value);
  }
}

int64_t PmixBody::number() {
  int64_t number = 0;
  ENSURE(at_ + sizeof number <= bytes_.size(), "at {} of {} bytes", at_, bytes_.size());
  std::memcpy(&number, bytes_.data() + at_, sizeof number);
  at_ += sizeof number;
  return number;
}

std::string PmixBody::text() {
  const auto size = size_t(number());
  ENSURE(size <= bytes_.size() - at_, "{} bytes at {} of {}", size, at_, bytes_.size());
  at_ += size;
  return bytes_.substr(at_ - size, size);
}

PmixServer::Epoch PmixBody::epoch() {
  PmixServer::Epoch epoch;
  epoch.epoch = uint64_t(number());
  epoch.mark = text();
  epoch.this_host = int(number());
  for (int64_t left = number(); left > 0; --left) epoch.hosts.push_back(text());
  for (int64_t left = number(); left > 0; --left) {
    const std::string bytes = text();
    auto& ranks = epoch.ranks_of_host.emplace_back(bytes.size() / sizeof(int));
    if (!ranks.empty()) std::memcpy(ranks.data(), bytes.data(), bytes.size());
  }
  return epoch;
}

Environment PmixBody::environment() {
  Environment environment;
  for (int64_t left = number(); left > 0; --left) {
    std::string name = text();
    environment.emplace_back(std::move(name), text());
  }
  return environment;
}

}  // namespace trainctl
