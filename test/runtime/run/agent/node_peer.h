// What tests of supervisors and agents share: an end of a connection between them that does as it is told.
#pragma once
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/run/wire/stream.h"
#include "runtime/run/wire/supervisor_file.h"
#include "test/support/hand_clock.h"

namespace trainctl::test {

/// An end of a connection: of an agent, of a stranger, or of a supervisor.
struct Peer {
  explicit Peer(int fd) : stream(fd) { stream.greeted(); }
  /// Dials the supervisor of that run.
  explicit Peer(const std::string& run)
      : file(SupervisorFile::from_json(real_file_system().read_text(supervisor_file(run)))),
        stream(connect_to(file.address, 600)) {
    stream.greeted();
  }
  wire::NodeHello hello_of(const std::string& name) const {
    return {.token = file.token, .name = name, .host = name + ".host", .version = TRAINCTL_VERSION, .pid = 1};
  }
  void send(const wire::NodeHello& hello) {
    stream.send({.kind = wire::Kind::hello, .payload = hello.to_json()});
  }
  void send(const wire::Message& message) { stream.send(message); }
  /// Bytes as they are, as many as fit.
  size_t send_bytes(const std::string& bytes) {
    const ssize_t n = ::send(stream.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? size_t(n) : 0;
  }
  void read() {
    stream.flush();
    for (wire::Message& message : stream.read()) got.push_back(std::move(message));
  }
  /// How many messages of that kind have come.
  int64_t count(wire::Kind kind) const {
    return std::count_if(got.begin(), got.end(), [&](const wire::Message& m) { return m.kind == kind; });
  }
  const wire::Message* last(wire::Kind kind) const {
    for (auto m = got.rbegin(); m != got.rend(); ++m)
      if (m->kind == kind) return &*m;
    return nullptr;
  }

  SupervisorFile file;
  Stream stream;
  std::vector<wire::Message> got;
};

/// Waits in real time until it holds, for as long as no machine needs.
inline bool eventually(const std::function<bool()>& condition) {
  const double limit_s = real_clock().monotonic_s() + 1200;
  while (!condition()) {
    if (real_clock().monotonic_s() > limit_s) return false;
    real_clock().sleep_s(0.001);
  }
  return true;
}

}  // namespace trainctl::test
