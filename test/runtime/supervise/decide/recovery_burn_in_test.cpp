// Goal: what a burn-in finds decides which nodes a run uses: wrong ones never, slow ones where no spare is;
// and each node is tested once, until it comes back. Method: runs by hand on a few nodes.
#include "test/runtime/supervise/decide/recovery_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a burn-in: wrong nodes are out at once and cost no restart, others are not tested again") {
  auto o = recovery_options(2, {"a", "b", "c", "d"});
  o.burn_in = true;
  o.max_restarts = 0;
  Run run(o);
  CHECK(run.start.burn_in == Names{"a", "b"});
  CHECK(run.recovery.burned_in({{.node = "a", .product_s = 1}, {.node = "b", .wrong = "core 3: it is"}}, 1)
            .empty());
  run.fail(ErrorCode::kDevice, 3, "b");
  run.recovery.no_checkpoint(0);
  run.go();
  CHECK(run.start.nodes == Names{"a", "c"});
  CHECK(run.start.burn_in == Names{"c"});
  CHECK(run.recovery.restarts() == 0);
  run.recovery.burned_in({{.node = "c", .product_s = 1}}, 2);
  run.recovery.progressed(1);
  const std::vector<PutOutNode> out = run.recovery.take_quarantined();
  REQUIRE(out.size() == 1);
  CHECK(out[0].name == "b");
  REQUIRE(out[0].failures.size() == 1);
  CHECK(out[0].failures[0].kind == NodeEvidence::failed_probe);
  CHECK(out[0].failures[0].why == "burn-in: core 3: it is");
  // A restart on them tests none; the spare in place of a lost one is tested, and so is one that came back.
  run.lose("c");
  run.found(1);
  run.go();
  CHECK(run.start.nodes == Names{"a", "d"});
  CHECK(run.start.burn_in == Names{"d"});
  run.recovery.progressed(2);
  run.recovery.node_ready("c", 2, 3);
  run.lose("d");
  run.found(2);
  run.go();
  CHECK(run.start.nodes == Names{"a", "c"});
  CHECK(run.start.burn_in == Names{"c"});
}

TEST_CASE("several nodes that a burn-in finds wrong are out together") {
  auto o = recovery_options(4, {"a", "b", "c", "d"});
  o.burn_in = true;
  o.max_restarts = 0;
  Run run(o);
  run.recovery.burned_in(
      {{.node = "a"}, {.node = "b", .wrong = "x"}, {.node = "c"}, {.node = "d", .wrong = "y"}}, 1);
  run.fail(ErrorCode::kDevice, 7, "d");
  run.recovery.no_checkpoint(0);
  run.go();
  CHECK(run.start.nodes == Names{"a", "c"});
  CHECK(run.start.burn_in.empty());
  CHECK(run.recovery.restarts() == 0);
}

TEST_CASE("a node that is wrong and without which nothing runs ends the run") {
  auto o = recovery_options(1, {"a"});
  o.burn_in = true;
  o.max_restarts = 0;
  Run run(o);
  run.recovery.burned_in({{.node = "a", .wrong = "core 3: it is"}}, 1);
  run.fail(ErrorCode::kDevice, 0, "a");
  CHECK(run.stopped().exit_code == 11);
}

TEST_CASE("a slow node is left after a save where a spare takes its place, and used where none does") {
  for (const bool has_spare : {false, true}) {
    auto o = recovery_options(3, has_spare ? Names{"a", "b", "c", "d"} : Names{"a", "b", "c"});
    o.burn_in = true;
    Run run(o);
    const auto slow = run.recovery.burned_in(
        {{.node = "a", .product_s = 1}, {.node = "b", .product_s = 1.43}, {.node = "c", .product_s = 1}}, 1);
    REQUIRE(slow.size() == 1);
    CHECK(slow[0].is_put_out == has_spare);
    CHECK(run.recovery.regroup(100) == Regroup::none);  // it has no step to save
    run.recovery.progressed(1);
    CHECK(run.recovery.regroup(100) == (has_spare ? Regroup::without_quarantined : Regroup::none));
    if (!has_spare) continue;
    run.recovery.attempt_ended({.how = AttemptEnd::regrouped}, 101);
    run.found(1);
    run.go();
    CHECK(run.start.nodes == Names{"a", "d", "c"});
    CHECK(run.start.burn_in == Names{"d"});
  }
}
