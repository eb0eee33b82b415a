// Goal: what ends a run is failures in a row without progress; a run that makes progress goes on, however
// often it
//       fails, and so does one whose failures go with a node that is put out.
// Method: short histories on one to six nodes, and long ones with progress. All short histories are in
//         recovery_history_test.
#include <catch2/catch.hpp>

#include "test/runtime/supervise/decide/recovery_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a run that makes progress is never ended by the number of its failures") {
  auto o = recovery_options(2, {"a", "b", "c"});
  o.max_restarts = 1;
  o.quarantine.failures = 0;
  Run run(o);
  for (int i = 1; i <= 1000; ++i) {
    run.recovery.progressed(10 * i);
    if (i % 2) run.recovery.saved(10 * i);
    run.now_s += 1;
    if (i % 3)
      run.fail(ErrorCode::kWorker, i % 4, run.start.nodes[0]);
    else
      run.lose(run.start.nodes[1]), run.recovery.node_ready(run.start.nodes[1], 2, run.now_s);
    REQUIRE_FALSE(run.recovery.over());
    run.found(10 * i - i % 2);
    run.go();
  }
  CHECK(run.recovery.restarts() == 667);
}

TEST_CASE("a run that goes back again and again ends, though it saves the same steps each time") {
  auto o = recovery_options(1, {"a"});
  o.max_restarts = 2;
  Run run(o);
  int attempts = 0;
  for (; attempts < 10 && !run.recovery.over(); ++attempts) {
    if (attempts > 0) {
      CHECK(std::get<FindCheckpoint>(run.next()).at_most == 16);
      run.recovery.checkpoint_found(16);
      run.go();
    }
    run.recovery.progressed(20);
    for (const int64_t step : {16, 20, 24}) run.recovery.saved(step);
    run.recovery.progressed(24);
    run.recovery.go_back(16, false, "a rank computed wrongly");
    run.fail(ErrorCode::kDevice, 1, "a");
  }
  CHECK(attempts == 3);
  CHECK(run.stopped().exit_code == 11);
  CHECK(run.stopped().why.starts_with("it broke"));
  CHECK(run.recovery.take_quarantined().empty());
}

TEST_CASE("a node whose device is broken is out at its first failure, and costs no restart") {
  for (const ErrorCode code : {ErrorCode::kDevice, ErrorCode::kHardware}) {
    auto o = recovery_options(2, {"a", "b", "c"});
    o.max_restarts = 0;
    Run run(o);
    run.recovery.progressed(5);
    run.fail(code, 3, "b");
    REQUIRE(run.recovery.over() == (code == ErrorCode::kHardware));
    if (run.recovery.over()) continue;
    run.recovery.no_checkpoint(0);
    run.go();
    CHECK(run.start.nodes == Names{"a", "c"});
    CHECK(run.start.why == "it broke; with c in place of b");
    CHECK(run.recovery.restarts() == 0);
    run.recovery.progressed(6);
    CHECK(run.recovery.take_quarantined().at(0).name == "b");
    // A person has repaired it.
    run.recovery.set_quarantined("b", false);
    CHECK(run.recovery.regroup(100) == Regroup::none);  // it is a spare
  }
  // A device of the only node that carries the run: it counts, as any failure.
  auto o = recovery_options(1, {"a"});
  o.max_restarts = 1;
  Run run(o);
  run.fail(ErrorCode::kDevice, 0, "a");
  run.recovery.no_checkpoint(0);
  run.go();
  CHECK(run.recovery.restarts() == 1);
  run.fail(ErrorCode::kDevice, 0, "a");
  CHECK(run.stopped().exit_code == 11);
}

TEST_CASE("a broken device that follows its rank from node to node is none") {
  auto o = recovery_options(1, {"a", "b", "c", "d", "e", "f"});
  o.max_restarts = 100;
  Run run(o);
  int attempts = 0;
  while (!run.recovery.over()) {
    run.fail(ErrorCode::kDevice, 1, run.start.nodes[0]);
    ++attempts;
    if (run.recovery.over()) break;
    run.recovery.no_checkpoint(0);
    run.go();
  }
  CHECK(attempts == 4);
  CHECK(run.recovery.take_quarantined().empty());
}

TEST_CASE("three attempts that fail alike without progress are a crash loop, also after a lost node") {
  for (const bool step : {false, true}) {
    auto o = recovery_options(1, {"a"});
    o.from_step = 10;
    Run run(o);
    run.recovery.progressed(14);  // progress: does not count
    run.fail(ErrorCode::kWorker);
    for (int i = 0; i < 3; ++i) {
      run.found(10);
      run.go();
      if (step) run.recovery.progressed(14);
      run.fail(ErrorCode::kWorker);
    }
    CHECK(run.stopped().exit_code == 10);
    CHECK(run.stopped().why == "it broke; 3 attempts in a row made no progress and failed alike");
  }
  Run run(recovery_options(1, {"a"}));
  for (int i = 0; i < 3; ++i) {
    run.lose("a");
    run.recovery.node_ready("a", 2, 0);
    if (i == 2) break;
    run.recovery.no_checkpoint(0);
    run.go();
  }
  CHECK(run.stopped().exit_code == 9);
}

TEST_CASE("failures at different steps are no crash loop before nine in a row") {
  auto o = recovery_options(1, {"a"});
  o.from_step = 10;
  o.max_restarts = 9;
  o.quarantine.failures = 0;
  Run run(o);
  run.recovery.progressed(30);
  run.lose("a");
  run.recovery.node_ready("a", 2, 0);
  for (int i = 0; i < 9; ++i) {
    run.found(10);
    run.go();
    run.recovery.progressed(11 + i);
    run.fail(ErrorCode::kWorker);
    REQUIRE(run.recovery.over() == (i == 8));
  }
  CHECK(run.stopped().why == "it broke; 9 attempts in a row made no progress");
}

TEST_CASE("a crash loop that follows its rank to another node is the program's") {
  auto o = recovery_options(1, {"a", "b", "c"});
  o.from_step = 1;
  Run run(o);
  int attempts = 1;
  for (; attempts < 10; ++attempts) {
    run.fail(ErrorCode::kWorker, 1, run.start.nodes[0]);
    if (run.recovery.over()) break;
    run.found(1);
    run.go();
  }
  CHECK(attempts == 4);
  CHECK(run.recovery.take_quarantined().empty());
}
