// Goal: a run leaves out the nodes on the list, and takes them back while it runs: after their time, or
// when a
//       person lifts them; a list that cannot be read costs nothing but the look.
// Method: a list in a temporary folder, a hand-wound clock, a supervisor's parts without nodes or ranks.
#include "runtime/supervise/loop/run_quarantine.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "runtime/base/record.h"
#include "runtime/supervise/loop/supervisor.h"
#include "runtime/supervise/slurm/cluster_name.h"
#include "test/runtime/supervise/loop/supervised_stage.h"

using namespace trainctl;

namespace {

struct QuarantineStage : test::SupervisedStage {
  QuarantineStage() {
    ::setenv("TRAINCTL_QUARANTINE", path.c_str(), 1);
    recovery.emplace(recovery_options(plan), clock.monotonic_s());
    for (const char* name : {"a", "b"}) recovery->node_ready(name, 1, clock.monotonic_s());
  }
  ~QuarantineStage() { ::unsetenv("TRAINCTL_QUARANTINE"); }
  void change(const std::function<void(QuarantineList&)>& how) {
    QuarantineFile(real_file_system(), clock, path, this_cluster()).update(how);
  }
  /// The list has put the node out for a day, by another run.
  void put_out(const std::string& node) {
    change([&](QuarantineList& list) {
      list.add(node, -1, {.run = "other", .cause = "it crashed", .unix_s = clock.unix_s()}, {.failures = 1},
               clock.unix_s());
    });
  }
  bool is_out(const std::string& name) const {
    for (const PoolNode& node : recovery->pool())
      if (node.name == name) return node.quarantined;
    return false;
  }
  /// Looks until the node is back, or ten looks have found it out.
  bool comes_back(RunQuarantine& quarantine, const std::string& node) {
    for (int look = 0; look < 10 && is_out(node); ++look) {
      clock.sleep_s(6);
      quarantine.turn();  // begins to read
      test::eventually([&] { return quarantine.turn(), quarantine.is_idle(); });
    }
    return !is_out(node);
  }

  const std::string path = folder / "quarantine.json";
  std::optional<Recovery> recovery;
};

ParsedJob job_of_two_stages(SlowNodes policy) {
  ParsedJob job = parse_job({.text = R"({"version": 1,
  "model": {"family": "llama", "hidden_size": 64, "num_layers": 12, "num_heads": 4, "num_kv_heads": 2,
            "ffn_size": 96, "vocab_size": 128, "max_seq_len": 32},
  "data": {"train": [{"path": "a.idx"}], "seq_len": 32},
  "batch": {"global_sequences": 32, "micro_sequences": 1},
  "parallelism": {"pipeline": 2},
  "schedule": {"total_steps": 30, "lr": 1e-3}})",
                             .file = "stages.json",
                             .overrides = {fmt::format("fault_tolerance.slow_nodes={}", word_of(policy))}});
  REQUIRE(job.ok());
  return job;
}

}  // namespace

TEST_CASE("a node that a person lifts is used again while the run goes on", "[run_quarantine]") {
  QuarantineStage stage;
  stage.put_out("a");
  stage.put_out("b");
  RunQuarantine quarantine(*stage.run, *stage.recovery);
  quarantine.begin();
  CHECK(stage.is_out("a"));
  CHECK(stage.printed("a is left out: in quarantine for another ") == 1);
  CHECK_FALSE(stage.comes_back(quarantine, "a"));
  stage.change([&](QuarantineList& list) { list.lift("a", "eva", stage.clock.unix_s()); });
  CHECK(stage.comes_back(quarantine, "a"));
  CHECK(stage.is_out("b"));
  stage.run->log.await_files();
  REQUIRE(stage.events("quarantine_over").size() == 1);
  CHECK(stage.events("quarantine_over")[0].at("node") == "a");
  CHECK(stage.printed("a is out of quarantine: it may be used again") == 1);
}

TEST_CASE("a node is used again after its time, also if the list cannot be read", "[run_quarantine]") {
  const bool is_damaged = GENERATE(false, true);
  QuarantineStage stage;
  stage.put_out("b");
  RunQuarantine quarantine(*stage.run, *stage.recovery);
  quarantine.begin();
  if (is_damaged) real_file_system().replace_text(stage.path, "half a li");
  stage.clock.sleep_s(86000);
  CHECK_FALSE(stage.comes_back(quarantine, "b"));
  stage.clock.sleep_s(400);
  CHECK(stage.comes_back(quarantine, "b"));
}

TEST_CASE("a run without nodes in quarantine does not look at the list", "[run_quarantine]") {
  QuarantineStage stage;
  RunQuarantine quarantine(*stage.run, *stage.recovery);
  quarantine.begin();
  stage.put_out("a");  // by another run, meanwhile: it is this one's all the same
  stage.clock.sleep_s(100);
  quarantine.turn();
  CHECK(quarantine.is_idle());
  CHECK_FALSE(stage.is_out("a"));
}

TEST_CASE("a node that a burn-in found wrong is listed as such, one that is slow is named",
          "[run_quarantine]") {
  QuarantineStage stage;
  for (const char* name : {"c", "d"}) stage.recovery->node_ready(name, 1, stage.clock.monotonic_s());
  RunQuarantine quarantine(*stage.run, *stage.recovery);
  quarantine.begin();
  stage.recovery->attempt_started({.nodes = {"a", "b"}, .width = {.data = 2, .ranks = 2}}, 1);
  quarantine.burned_in(record_text(BurnInRecord{.nodes = {{.node = "a", .product_s = 1.5},
                                                          {.node = "b", .wrong = "core 3: it is"},
                                                          {.node = "c", .product_s = 1},
                                                          {.node = "d", .product_s = 1}}}));
  CHECK(stage.is_out("a"));
  CHECK(stage.is_out("b"));
  stage.recovery->progressed(1);
  quarantine.tell();
  const QuarantineList list =
      QuarantineFile(real_file_system(), stage.clock, stage.path, this_cluster()).read();
  REQUIRE(list.entries().size() == 2);
  for (const QuarantineEntry& entry : list.entries()) {
    const NodeEvidence& evidence = entry.evidence.at(0);
    CHECK(evidence.kind == (entry.node == "a" ? NodeEvidence::slow : NodeEvidence::failed_probe));
    CHECK(evidence.cause == (entry.node == "a" ? "burn-in: products take 1.50 times the median of 3 nodes"
                                               : "burn-in: core 3: it is"));
    CHECK(entry.is_out(stage.clock.unix_s()));
  }
  stage.run->log.await_files();
  REQUIRE(stage.events("slow_node").size() == 1);
  CHECK(stage.events("slow_node")[0].at("left_out") == true);
  CHECK(stage.printed("a is slow: burn-in: products take 1.50 times the median of 3 nodes; a spare takes") ==
        1);
}

TEST_CASE("what the steps show of a node puts it out where the run swaps, when a spare has come",
          "[run_quarantine]") {
  for (const SlowNodes policy : {SlowNodes::notify, SlowNodes::swap}) {
    QuarantineStage stage;
    stage.plan.job.job.fault_tolerance.slow_nodes = policy;
    RunQuarantine quarantine(*stage.run, *stage.recovery);
    quarantine.begin();
    stage.recovery->attempt_started({.nodes = {"a", "b"}, .width = {.data = 2, .ranks = 2}}, 1);
    quarantine.slow_ranks(R"({"cause":"data","node":"b","share":0.4})");  // its disk
    quarantine.slow_ranks(R"({"cause":"compute","share":0.4})");          // no node is known
    quarantine.slow_ranks(R"({"cause":"compute","node":"a","share":0.4})");
    quarantine.turn();
    CHECK_FALSE(stage.is_out("a"));
    stage.recovery->node_ready("c", 1, stage.clock.monotonic_s());
    quarantine.turn();
    CHECK(stage.is_out("a") == (policy == SlowNodes::swap));
    CHECK_FALSE(stage.is_out("b"));
    stage.recovery->progressed(1);
    quarantine.tell();
    stage.run->log.await_files();
    const auto events = stage.events("slow_node");
    REQUIRE(events.size() == (policy == SlowNodes::swap ? 2 : 0));
    if (events.empty()) continue;
    CHECK(events[0].at("left_out") == false);
    CHECK(events[1].at("left_out") == true);
    CHECK(stage.printed("a is slow: its ranks compute 40 % longer than others; a spare takes its place") ==
          1);
  }
}

TEST_CASE("a node that is as fast as the others again keeps its place", "[run_quarantine]") {
  QuarantineStage stage;
  stage.plan.job.job.fault_tolerance.slow_nodes = SlowNodes::swap;
  RunQuarantine quarantine(*stage.run, *stage.recovery);
  quarantine.begin();
  stage.recovery->attempt_started({.nodes = {"a", "b"}, .width = {.data = 2, .ranks = 2}}, 1);
  quarantine.slow_ranks(R"({"cause":"compute","node":"a","share":0.4})");
  quarantine.slow_ranks_over(R"({"cause":"compute","node":"a"})");
  stage.recovery->node_ready("c", 1, stage.clock.monotonic_s());
  quarantine.turn();
  CHECK_FALSE(stage.is_out("a"));
}

TEST_CASE("stages with slow ranks get fewer layers where no spare is there, until one comes",
          "[run_quarantine]") {
  for (const SlowNodes policy : {SlowNodes::swap, SlowNodes::rebalance}) {
    QuarantineStage stage;
    stage.plan.job = job_of_two_stages(policy);
    stage.plan.rank_room_bytes = uint64_t(1) << 40;
    RunQuarantine quarantine(*stage.run, *stage.recovery);
    quarantine.begin();
    stage.recovery->attempt_started({.nodes = {"a", "b"}, .width = {.data = 1, .ranks = 2}}, 1);
    quarantine.slow_ranks(R"({"cause":"compute","node":"a","ranks":[0],"share":3})");
    stage.recovery->progressed(1);
    const bool moves = policy == SlowNodes::rebalance;
    CHECK(stage.recovery->may_move_layers() == !moves);
    CHECK(stage.recovery->regroup(stage.clock.monotonic_s() + 100) ==
          (moves ? Recovery::Regroup::other_layers : Recovery::Regroup::none));
    // Once: the ranks stay slow.
    quarantine.slow_ranks(R"({"cause":"compute","node":"a","ranks":[0],"share":4})");
    stage.run->log.await_files();
    CHECK(stage.events("slow_node").size() == 1);
    CHECK(stage.printed("no spare is there: stages get") == (moves ? 1 : 0));
    stage.recovery->node_ready("c", 1, stage.clock.monotonic_s());
    quarantine.turn();
    CHECK(stage.is_out("a"));
    CHECK(stage.recovery->may_move_layers());
    CHECK(stage.recovery->regroup(stage.clock.monotonic_s() + 100) == Recovery::Regroup::without_quarantined);
  }
}
