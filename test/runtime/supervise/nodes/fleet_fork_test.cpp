// Connections that are closed while a child process still holds a copy of their descriptors.
//
// Goal: an event that epoll reports for a connection that is gone harms nothing. Between fork and exec a
// child holds every descriptor of the supervisor, and a closed one stays in the epoll set as long. Method: a
// child that does not exec keeps the copies; agents go and come meanwhile.
#include <catch2/catch.hpp>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "runtime/supervise/nodes/fleet.h"
#include "test/runtime/run/agent/node_peer.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;

namespace {

/// Children that hold a copy of every descriptor of this process; ended with this object.
struct Holders {
  std::vector<pid_t> pids;
  void add() {
    const pid_t parent = ::getpid(), child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) ::pause();
      ::_exit(0);
    }
    if (child > 0) pids.push_back(child);
  }
  ~Holders() {
    for (const pid_t pid : pids) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
  }
};

}  // namespace

TEST_CASE("an event for a connection that is gone is ignored") {
  constexpr int kRounds = 20;
  test::TemporaryFolder dir;
  test::HandClock clock;
  Fleet fleet({.run_directory = dir.path(), .nodes = {"a", "b"}, .listen = "unix:" + dir.path() + "/supervisor"}, clock);
  int up = 0, lost = 0;
  fleet.set_handler({.up = [&](int, const wire::NodeHello&) { ++up; },
                     .lost = [&](int, const NodeLoss&) { ++lost; },
                     .start_failed = {},
                     .message = {}});
  Holders holders;
  for (int round = 1; round <= kRounds; ++round) {
    auto peer = std::make_unique<test::Peer>(dir.path());
    peer->send(peer->hello_of(round % 2 ? "a" : "b"));
    REQUIRE(test::eventually([&] { return fleet.serve(), up == round; }));
    holders.add();
    REQUIRE(int(holders.pids.size()) == round);
    ::shutdown(peer->stream.fd(), SHUT_RDWR);  // also for the copy that the child has of this end
    REQUIRE(test::eventually([&] { return fleet.serve(), lost == round; }));
    // The set reports the closed connection in each turn.
    for (int turn = 0; turn < 3; ++turn) fleet.serve();
  }
  CHECK(up == kRounds);
}
