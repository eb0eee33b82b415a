// The fleet of a supervisor, and agents that a test plays. For files of Catch2.
#pragma once
#include <fmt/format.h>
#include <poll.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/supervise/nodes/fleet.h"
#include "test/runtime/run/agent/node_peer.h"
#include "test/support/temporary_folder.h"

namespace trainctl::test {

using wire::Kind;
using wire::Message;

struct FleetStage {
  TemporaryFolder dir;
  HandClock clock;
  std::vector<std::string> events;
  std::vector<std::pair<int, Message>> messages;
  std::unique_ptr<Fleet> fleet;

  explicit FleetStage(std::vector<std::string> nodes = {"a", "b"}, const std::string& listen = "") {
    make({.nodes = std::move(nodes), .listen = listen});
  }
  explicit FleetStage(Fleet::Options options) { make(std::move(options)); }

  void make(Fleet::Options options) {
    options.run_directory = dir.path();
    if (options.listen.empty()) options.listen = "unix:" + dir.path() + "/supervisor";
    fleet = std::make_unique<Fleet>(std::move(options), clock);
    fleet->set_handler(
        {.up = [this](int node,
                      const wire::NodeHello& h) { events.push_back(fmt::format("up {} {}", node, h.host)); },
         .lost =
             [this](int node, const NodeLoss& loss) {
               events.push_back(
                   fmt::format("lost {} {}{}", node, loss.why, loss.by_own_pause ? " (pause)" : ""));
             },
         .paused = [this](double seconds) { events.push_back(fmt::format("paused {:.1f}", seconds)); },
         .message = [this](int node, Message&& m) { messages.emplace_back(node, std::move(m)); }});
  }
  std::unique_ptr<Peer> peer() { return std::make_unique<Peer>(dir.path()); }

  /// Serves until it holds. The fleet's clock stands still.
  template <typename... Peers>
  bool until(const std::function<bool()>& condition, Peers&... peers) {
    const double limit_s = real_clock().monotonic_s() + 180;
    while (!condition()) {
      if (real_clock().monotonic_s() > limit_s) return false;
      pollfd wait{.fd = fleet->fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, 1);
      fleet->serve();
      (peers.read(), ...);
    }
    return true;
  }
  /// An agent that has been welcomed.
  std::unique_ptr<Peer> agent(const std::string& name, int pid = 1, uint64_t obeyed = 0) {
    auto peer = this->peer();
    wire::NodeHello hello = peer->hello_of(name);
    hello.pid = pid;
    hello.obeyed = obeyed;
    peer->send(hello);
    REQUIRE(until([&] { return peer->count(Kind::welcome) == 1; }, *peer));
    return peer;
  }
  /// Lets time pass in steps that are no pause of this process, with everyone silent but `peers`.
  template <typename... Peers>
  void pass(double seconds, Peers&... peers) {
    for (const double end_s = clock.now_s + seconds; clock.now_s < end_s;) {
      clock.now_s += 0.1;
      (peers.send(Message{.kind = Kind::beat}), ...);
      fleet->serve();
      (peers.read(), ...);
    }
  }
};

}  // namespace trainctl::test
