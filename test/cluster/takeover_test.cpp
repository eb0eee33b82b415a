// Goal: a run outlives its supervisor, without a step lost or done twice, and two supervisors never both act.
// Method: supervisors are stopped, killed and lost with their node while steps are running; the bits are
//         compared with a run that nothing disturbed.
#include <signal.h>

#include <catch2/catch.hpp>

#include "runtime/base/json.h"
#include "test/cluster/cluster_run.h"

using trainctl::Json;
using namespace trainctl::test;

TEST_CASE("a supervisor that was stopped does nothing when another has the run", "[takeover][cluster_run]") {
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, {.steps = 200, .silence_s = 3, .grace_s = 20, .set = {"checkpoint.every_steps=1"}});
  run.launch();
  run.await_step(7);
  ClusterRun::Stopped old = run.stop_supervisor();
  run.resume(1);
  run.await_event("attached");
  run.await_step(run.step() + 3);
  const size_t events = run.events("checkpoint").size();
  ClusterRun::go_on(old.pid);
  const Outcome woken = old.child->wait(120);
  INFO(woken.err << run.story());
  CHECK(woken.status == 12);
  CHECK(woken.err.find("another supervisor (pid ") != std::string::npos);
  // It ended while the other one goes on, with the agents that it had started itself.
  REQUIRE(run.events("end").empty());
  CHECK(run.events("checkpoint").size() >= events);
  const Outcome outcome = run.finish();
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  CHECK(run.epoch() == 1);
  CHECK(run.events("restart").empty());
  CHECK(run.events("save_failed").empty());
  CHECK(run.events("end").size() == 1);
  run.check_bits();
  run.check_nothing_left();
}

namespace {

RunSettings with_takeover(RunSettings settings) {
  settings.silence_s = 3;
  settings.grace_s = 12;
  settings.set.push_back("fault_tolerance.supervisor_takeover=true");
  return settings;
}

/// The run finished in its first epoch, with the undisturbed bits, and left nothing.
void check_no_step_lost(ClusterRun& run, size_t takeovers) {
  const Json end = run.await_end(240);  // 400 steps take a slow machine more than a minute
  INFO(run.story());
  CHECK(end.at("state") == "finished");
  CHECK(end.at("exit_code") == 0);
  CHECK(run.events("takeover").size() == takeovers);
  CHECK(run.events("attached").size() == takeovers);
  CHECK(run.epoch() == 1);
  CHECK(run.events("restart").empty());
  CHECK(run.events("save_failed").empty());
  run.check_bits();
  run.check_nothing_left();
  CHECK(eventually(120, [&] { return run.started_supervisors().empty(); }));
}

}  // namespace

TEST_CASE("an agent takes the place of a supervisor that was killed", "[takeover][cluster_run]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  RunSettings settings = with_takeover({.start = start, .steps = 60});
  settings.grace_s = 24;  // node1's turn comes 2 s after node0's: a busy machine does not change their order
  ClusterRun run(nodes, settings);
  run.launch();
  run.await_step(7);
  run.kill_supervisor();
  check_no_step_lost(run, 1);
  // The first in the order of the nodes, and it says why.
  const Json takeover = run.events("takeover").at(0);
  CHECK(takeover.at("host") == "node0");
  CHECK(takeover.at("reason").get<std::string>().find("node0 heard no supervisor for ") == 0);
  CHECK(takeover.at("before").get<std::string>().find("on node0") != std::string::npos);
}

TEST_CASE("a supervisor that took a place is replaced, too", "[takeover][cluster_run][more]") {
  FakeNodes nodes(5, machines());
  // Ranks train on without a supervisor: so many steps that the first takeover does not find them at the end.
  ClusterRun run(nodes, with_takeover({.steps = 400, .set = {"checkpoint.every_steps=1"}}));
  run.launch();
  run.await_step(7);
  run.kill_supervisor();
  REQUIRE(eventually(30, [&] { return run.events("attached").size() == 1; }));
  const int64_t step = run.step();
  REQUIRE(eventually(30, [&] { return run.step() >= step + 5; }));
  const std::vector<pid_t> found = run.started_supervisors();
  REQUIRE(found.size() == 1);
  REQUIRE(::kill(found[0], SIGKILL) == 0);
  check_no_step_lost(run, 2);
}

TEST_CASE("the supervisor's own node is lost, and an agent takes its place", "[takeover][cluster_run]") {
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, with_takeover({.steps = 60,
                                       .supervisor = 4,
                                       .hosts = R"(["node0","node1","node2","node3"])"}));
  run.launch();
  run.await_step(7);
  nodes.poweroff(4);
  check_no_step_lost(run, 1);
}

TEST_CASE("the supervisor is lost with a node that runs ranks", "[takeover][cluster_run][more]") {
  const std::string start = GENERATE("pmix", "mpirun");
  CAPTURE(start);
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, with_takeover({.start = start, .steps = 60}));
  run.launch();
  run.await_step(7);
  nodes.poweroff(0);
  const Json end = run.await_end();
  INFO(run.story());
  CHECK(end.at("state") == "finished");
  const std::vector<Json> takeovers = run.events("takeover");
  REQUIRE(takeovers.size() == 1);
  CHECK(takeovers[0].at("host") != "node0");
  // The living agents stay: the next epoch begins on them and the spare, from the newest checkpoint.
  REQUIRE(run.events("restart").size() == 1);
  CHECK(run.events("restart")[0].at("restart") == 0);
  CHECK(run.epoch() == 2);
  run.check_bits();
  run.check_nothing_left();
}

TEST_CASE("no agent takes the place of a supervisor that is only stopped", "[takeover][cluster_run]") {
  FakeNodes nodes(5, machines());
  ClusterRun run(nodes, with_takeover({.steps = 60}));
  run.launch();
  run.await_step(7);
  const pid_t supervisor = run.supervisor_process();
  REQUIRE(::kill(supervisor, SIGSTOP) == 0);
  // Agents of two turns have tried.
  const std::string log = run.path() + "/logs/supervisor-node1.log";
  REQUIRE(eventually(30, [&] { return read_file(log).find("is running already") != std::string::npos; }));
  ClusterRun::go_on(supervisor);
  const Outcome outcome = run.finish();
  INFO(outcome.err << run.story());
  REQUIRE(outcome.status == 0);
  CHECK(run.events("takeover").empty());
  CHECK(run.events("supervisor").size() == 1);
  run.check_bits();
  run.check_nothing_left();
}
