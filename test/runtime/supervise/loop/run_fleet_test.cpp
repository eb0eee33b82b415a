// Goal: Recovery, the records and the console hear once of each node that comes, goes or cannot be started,
//       also of those that came while an attempt had the fleet's events; a supervisor finds what the one
//       before has left on the nodes.
// Method: agents played by this program over real sockets; a hand-wound clock, and the real one where
//       agents are waited for.
#include "runtime/supervise/loop/run_fleet.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/supervise/loop/supervisor.h"
#include "test/runtime/supervise/loop/supervised_stage.h"

using namespace trainctl;
using test::Peer;
using test::SupervisedStage;

namespace {

struct FleetStage : SupervisedStage {
  explicit FleetStage(SupervisePlan given = test::plan_of_two_nodes()) : SupervisedStage(std::move(given)) {
    recovery.emplace(recovery_options(plan), clock.monotonic_s());
    fleet.emplace(*run, *recovery);
  }
  std::unique_ptr<Peer> agent(const std::string& name) {
    auto peer = std::make_unique<Peer>(directory.path);
    wire::NodeHello hello = peer->hello_of(name);
    hello.unix_s = clock.unix_s();
    peer->send(hello);
    return peer;
  }
  bool until(const std::function<bool()>& condition) {
    return test::eventually([&] { return fleet->fleet().serve(), condition(); });
  }
  PoolNode::State state_of(const std::string& name) const {
    for (const PoolNode& node : recovery->pool())
      if (node.name == name) return node.state;
    FAIL("no node " + name);
    return {};
  }
  /// In status.json.
  NodeState status_of(const std::string& name) const {
    for (const NodeStatus& node : fleet->statuses({}))
      if (node.name == name) return node.state;
    FAIL("no node " + name);
    return {};
  }

  const SessionFolders folders;
  std::optional<Recovery> recovery;
  std::optional<RunFleet> fleet;
};

/// What the supervisor of epoch 3 has left: agents of both nodes that dial once there is a supervisor again
/// and say that the ranks of `epoch` run there; nullopt: none. They read on until the object ends.
class LeftAgents {
 public:
  LeftAgents(const RunDirectory& run, std::optional<uint64_t> epoch)
      : thread_([this, &run, epoch] { dial(run, epoch); }) {}
  ~LeftAgents() { end(); }
  /// How many orders to kill that epoch have come. No order comes any more.
  int64_t kills() {
    end();
    return peers_[0]->count(wire::Kind::kill) + peers_[1]->count(wire::Kind::kill);
  }

 private:
  void dial(const RunDirectory& run, std::optional<uint64_t> epoch) {
    const bool listens =
        test::eventually([&] { return ends_ || real_file_system().exists(supervisor_file(run.path)); });
    if (!listens) return;
    for (const char* name : {"a", "b"}) {
      peers_.push_back(std::make_unique<Peer>(run.path));
      wire::NodeHello hello = peers_.back()->hello_of(name);
      hello.epoch = epoch;
      peers_.back()->send(hello);
    }
    while (!ends_) {
      for (const auto& peer : peers_) {
        peer->send({.kind = wire::Kind::beat});
        peer->read();
      }
      real_clock().sleep_s(0.01);
    }
    for (const auto& peer : peers_) peer->read();
  }
  void end() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::atomic<bool> ends_ = false;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::thread thread_;
};

/// A run whose last attempt, of epoch 3, had a rank on each node.
SupervisePlan plan_to_attach() {
  SupervisePlan plan = test::plan_of_two_nodes();
  plan.attach.emplace();
  plan.attach->epoch = 3;
  plan.attach->nodes = {{.name = "a", .first = 0, .count = 1}, {.name = "b", .first = 1, .count = 1}};
  return plan;
}

}  // namespace

TEST_CASE("a node that comes and goes is reported to recovery, records and console", "[run_fleet]") {
  FleetStage stage;
  stage.fleet->begin(stage.folders);
  CHECK(stage.state_of("a") == PoolNode::coming);
  auto agent = stage.agent("a");
  REQUIRE(stage.until([&] { return stage.state_of("a") == PoolNode::ready; }));
  CHECK(stage.recovery->pool()[0].slots == 1);
  REQUIRE(stage.events("node_up").size() == 1);
  CHECK(stage.events("node_up")[0].at("node") == "a");
  CHECK(stage.status_of("a") == NodeState::spare);
  CHECK(stage.status_of("b") == NodeState::absent);

  agent.reset();
  REQUIRE(stage.until([&] { return stage.state_of("a") == PoolNode::lost; }));
  REQUIRE(stage.events("node_lost").size() == 1);
  const std::string why = stage.events("node_lost")[0].at("reason");
  CHECK(stage.printed(" ! a: " + why) == 1);
  CHECK(stage.status_of("a") == NodeState::lost);
  CHECK(stage.fleet->with_problems("too few nodes") == "too few nodes");  // the problems are those at the end
  stage.fleet->end();
  CHECK(stage.fleet->with_problems("too few nodes") == "too few nodes; a: " + why);
  CHECK(stage.fleet->statuses({}).empty());
}

TEST_CASE("a node whose clock is apart is named", "[run_fleet]") {
  for (const double apart_s : {0.0, 0.5, -90.0, 90.0}) {
    FleetStage stage;
    stage.fleet->begin(stage.folders);
    Peer agent(stage.directory.path);
    wire::NodeHello hello = agent.hello_of("b");
    hello.unix_s = stage.clock.unix_s() + apart_s;
    agent.send(hello);
    REQUIRE(stage.until([&] { return stage.state_of("b") == PoolNode::ready; }));
    CHECK(stage.printed("the clock of b is 90.0 s apart") == (std::abs(apart_s) == 90 ? 1 : 0));
    CHECK(stage.printed("apart") == (std::abs(apart_s) == 90 ? 1 : 0));
  }
}

TEST_CASE("nodes that came during an attempt are reported after it, once", "[run_fleet]") {
  FleetStage stage;
  stage.fleet->begin(stage.folders);
  const auto a = stage.agent("a");
  REQUIRE(stage.until([&] { return stage.state_of("a") == PoolNode::ready; }));
  stage.fleet->fleet().set_handler({});  // an attempt that passes nothing on
  const auto b = stage.agent("b");
  REQUIRE(stage.until([&] { return stage.fleet->fleet().ready_count() == 2; }));
  CHECK(stage.state_of("b") == PoolNode::coming);
  stage.fleet->listen();
  CHECK(stage.state_of("b") == PoolNode::ready);
  stage.fleet->listen();
  CHECK(stage.events("node_up").size() == 2);
}

TEST_CASE("why a node could not be started is reported once for each reason", "[run_fleet]") {
  FleetStage stage;
  stage.fleet->begin(stage.folders);
  for (const char* why : {"ssh: no route", "ssh: no route", "another version", "another version"})
    stage.fleet->start_failed(1, why);
  CHECK(stage.state_of("b") == PoolNode::lost);
  CHECK(stage.events("node_failed").size() == 2);
  CHECK(stage.printed(" ! b: ssh: no route") == 1);
  CHECK(stage.printed(" ! b: another version") == 1);
}

TEST_CASE("at its end a run keeps in memory what a resume reads from there", "[run_fleet]") {
  const bool one_machine = GENERATE(true, false);
  for (const int64_t saved : {4, 7}) {
    const bool keeps = one_machine && saved < 7;
    SupervisePlan plan = test::plan_of_two_nodes();
    plan.nodes.one_machine = one_machine;
    FleetStage stage(plan);
    stage.fleet->begin(stage.folders);
    RunStatus& status = stage.run->log.status();
    status.step = status.staged_step = status.partner_step = 7;
    status.saved_step = saved;
    const auto agent = stage.agent("a");
    REQUIRE(stage.until([&] { return stage.state_of("a") == PoolNode::ready; }));
    stage.fleet->end();
    REQUIRE(test::eventually([&] { return agent->read(), agent->last(wire::Kind::end) != nullptr; }));
    CHECK(agent->last(wire::Kind::end)->number == (keeps ? 1 : 0));
    CHECK(status.staged_step == (keeps ? 7 : -1));
    CHECK(status.partner_step == (keeps ? 7 : -1));
  }
}

TEST_CASE("on one machine an agent that cannot be started is an error", "[run_fleet]") {
  SupervisePlan plan = test::plan_of_two_nodes();
  plan.nodes.one_machine = true;
  FleetStage stage(plan);
  stage.fleet->begin(stage.folders);
  CHECK_THROWS_AS(stage.fleet->start_failed(0, "no memory for a process"), Error);
  CHECK(stage.fleet->statuses({}).empty());
}

TEST_CASE("a supervisor finds the ranks or the agents of the one before, or nothing", "[run_fleet]") {
  const auto attach = [](std::optional<uint64_t> epoch, RunFleet::Left expected, int64_t kills) {
    SupervisePlan plan = plan_to_attach();
    // So long agents are waited for: until each has said what it has. The entry's own limit is shorter.
    plan.job.job.fault_tolerance.node_silence_seconds = 36000;
    SupervisedStage stage(plan, true);
    Recovery recovery(recovery_options(stage.plan), real_clock().monotonic_s());
    RunFleet fleet(*stage.run, recovery);
    LeftAgents agents(stage.directory, epoch);
    const SessionFolders folders;
    CHECK(fleet.attach(folders) == expected);
    for (const PoolNode& node : recovery.pool()) CHECK(node.state == PoolNode::ready);
    CHECK(stage.events("node_up").size() == 2);
    CHECK(agents.kills() == kills);
    fleet.leave();
  };
  attach(3, RunFleet::Left::ranks, 0);
  attach(2, RunFleet::Left::agents, 2);
  attach(std::nullopt, RunFleet::Left::agents, 0);
}

TEST_CASE("without a supervisor before there is nothing to attach to", "[run_fleet]") {
  FleetStage stage;
  CHECK(stage.fleet->attach(stage.folders) == RunFleet::Left::nothing);
  CHECK_FALSE(real_file_system().exists(supervisor_file(stage.directory.path)));
}
