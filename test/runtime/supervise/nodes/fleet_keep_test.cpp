// Goal: an agent keeps what its supervisor has taken and not settled, for one that takes over.
// Method: the real fleet and an agent played by this program; a hand-wound clock.
#include <catch2/catch.hpp>

#include "runtime/supervise/nodes/fleet.h"
#include "test/runtime/run/agent/node_peer.h"
#include "test/support/temporary_folder.h"

using namespace trainctl;
using wire::Kind;
using wire::Message;

TEST_CASE("a supervisor lets an agent forget what it has handled, but for what it asks it to keep") {
  const test::TemporaryFolder dir;
  test::HandClock clock;
  Fleet fleet({.run_directory = dir.path(), .nodes = {"a"}, .listen = "unix:" + dir.path() + "/supervisor"},
              clock);
  int handled = 0;
  bool is_recorded = true;
  fleet.set_handler({.message = [&](int, Message&& message) { handled += message.kind == Kind::rank; },
                     .is_recorded = [&] { return is_recorded; }});
  test::Peer agent(dir.path());
  const auto until = [&](const std::function<bool()>& holds) {
    return test::eventually([&] { return fleet.serve(), agent.read(), holds(); });
  };
  agent.send(agent.hello_of("a"));
  REQUIRE(until([&] { return agent.count(Kind::welcome) == 1; }));
  for (const uint64_t sequence : {1, 2, 3})
    agent.send(Message{.kind = Kind::rank, .epoch = 1, .rank = 0, .sequence = sequence, .payload = "x"});
  REQUIRE(until([&] { return handled == 3; }));
  const auto forgets_up_to = [&] {
    agent.got.clear();
    clock.now_s += 0.5;  // the next heartbeat is due
    REQUIRE(until([&] { return agent.count(Kind::beat) > 0; }));
    return agent.last(Kind::beat)->sequence;
  };
  CHECK(forgets_up_to() == 3);
  fleet.let_keep(0, 2);
  CHECK(forgets_up_to() == 1);
  fleet.let_keep(0, 9);  // which has not come yet
  CHECK(forgets_up_to() == 3);
  fleet.let_keep(0, std::nullopt);
  CHECK(forgets_up_to() == 3);
  // Nor does an agent forget what is not in the records yet.
  is_recorded = false;
  agent.send(Message{.kind = Kind::rank, .epoch = 1, .rank = 0, .sequence = 4, .payload = "x"});
  REQUIRE(until([&] { return handled == 4; }));
  CHECK(forgets_up_to() == 3);
  is_recorded = true;
  CHECK(forgets_up_to() == 4);
}
