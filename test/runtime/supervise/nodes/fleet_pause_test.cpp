// Goal: a supervisor that stood still has lost no node, no message and no order by that; who is really gone is
//       lost by the pause.
// Method: the real fleet and agents played by this program; a hand-wound clock.
#include <catch2/catch.hpp>

#include "test/runtime/supervise/nodes/fleet_stage.h"

using namespace trainctl;
using wire::Kind;
using Stage = test::FleetStage;

TEST_CASE("agents that left a supervisor which stood still come back, and nothing is lost on the way") {
  for (const double pause_s : {1.5, 5.0, 25.0}) {
    CAPTURE(pause_s);
    Stage stage;
    auto a = stage.agent("a"), b = stage.agent("b");
    Machine& machine = stage.fleet->machine(0);
    a->send({.kind = Kind::rank, .epoch = 1, .sequence = 1, .payload = "one"});
    machine.order({.kind = Kind::rank, .epoch = 1, .payload = "first"});
    REQUIRE(stage.until([&] { return stage.messages.size() == 1 && a->count(Kind::rank) == 1; }, *a));
    const uint64_t obeyed = a->last(Kind::rank)->sequence;
    stage.events.clear();
    // It says a thing that is not read any more, and dials again; its old connection takes an order with it.
    machine.order({.kind = Kind::rank, .epoch = 1, .payload = "second"});
    a.reset();
    stage.clock.now_s += pause_s;
    stage.fleet->serve();
    CHECK(stage.events == std::vector<std::string>{fmt::format("paused {:.1f}", pause_s)});
    CHECK(stage.fleet->ready_count() == 2);
    machine.order({.kind = Kind::rank, .epoch = 1, .payload = "third"});
    auto back = stage.agent("a", 1, obeyed);
    const auto welcome = wire::Welcome::from_json(back->last(Kind::welcome)->payload);
    CHECK((welcome.keep && welcome.handled == 1));
    REQUIRE(stage.until([&] { return back->count(Kind::rank) == 2; }, *back));
    CHECK(back->got[back->got.size() - 2].payload == "second");
    CHECK(back->last(Kind::rank)->payload == "third");
    // What it has obeyed by then is not said again.
    back->send({.kind = Kind::beat, .number = int64_t(back->last(Kind::rank)->sequence)});
    REQUIRE(stage.until([&] { return stage.messages.size() == 2; }, *back));
    auto again = stage.agent("a", 1, back->last(Kind::rank)->sequence);
    machine.order({.kind = Kind::look});
    REQUIRE(stage.until([&] { return again->count(Kind::look) == 1; }, *again));
    CHECK(again->count(Kind::rank) == 0);
    CHECK(stage.events.size() == 1);
    stage.pass(1.9, *again, *b);
    CHECK(stage.fleet->ready_count() == 2);
  }
}

TEST_CASE("a supervisor that stood still turns no agent away whose hello it has not read") {
  Stage stage;
  auto late = stage.peer();
  stage.fleet->serve();  // the connection is there, its hello is not
  stage.clock.now_s += 25;
  stage.fleet->serve();
  CHECK(late->stream.open());
  late->send(late->hello_of("a"));
  CHECK(stage.until([&] { return late->count(Kind::welcome) == 1; }, *late));
  CHECK(stage.fleet->last_refusal().empty());
}

TEST_CASE("who does not come back after a pause of the supervisor is lost by it, and no later loss is") {
  Stage stage;
  auto a = stage.agent("a"), b = stage.agent("b");
  stage.events.clear();
  a.reset();
  stage.clock.now_s += 5;
  stage.fleet->serve();
  stage.pass(5.8, *b);
  CHECK(stage.fleet->ready_count() == 2);
  stage.pass(0.4, *b);
  const std::string why =
      "lost 0 it did not come back within 6.0 s after the supervisor had stood still for 5.0 s (pause)";
  CHECK(stage.events == std::vector<std::string>{"paused 5.0", why});
  auto other = stage.agent("a", 2);  // an agent that knows nothing of what ran there
  CHECK(stage.events.back() == "up 0 a.host");
  CHECK_FALSE(wire::Welcome::from_json(other->last(Kind::welcome)->payload).keep);
  b.reset();
  CHECK(stage.until([&] { return stage.fleet->ready_count() == 1; }, *other));
  CHECK(stage.events.back() == "lost 1 the connection was closed");
}
