// Goal: a run outlives its supervisor, without a step lost or done twice, and two supervisors never both act.
// Method: supervisors are stopped, killed and lost with their node while steps are running; the bits are
//         compared with a run that nothing disturbed.
#include <signal.h>

#include <catch2/catch.hpp>

#include "test/cluster/cluster_run.h"

using namespace trainctl::test;

TEST_CASE("a supervisor that was stopped does nothing when another has the run", "[takeover][cluster_run]") {
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.steps = 200, .grace_s = 15, .set = {"checkpoint.every_steps=1"}});
  run.launch();
  run.await_step(7);
  ClusterRun::Stopped old = run.stop_supervisor();
  run.resume(1);
  run.await_event("attached");
  run.await_step(run.step() + 3);
  const size_t events = run.events("checkpoint").size();
  ClusterRun::go_on(old.pid);
  const Outcome woken = old.child->wait(20);
  INFO(woken.err << run.story());
  CHECK(woken.status == 12);
  CHECK(woken.err.find("another supervisor (pid ") != std::string::npos);
  // It ended while the other one goes on, with the agents that it had started itself.
  REQUIRE(run.events("end").empty());
  CHECK(run.events("checkpoint").size() >= events);
  const Outcome outcome = run.finish(120);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() == 1);
  CHECK(run.events("restart").empty());
  CHECK(run.events("save_failed").empty());
  CHECK(run.events("end").size() == 1);
  run.check_bits();
  run.check_nothing_left();
}
