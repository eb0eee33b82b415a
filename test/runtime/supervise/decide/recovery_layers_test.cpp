// Goal: a run whose stages are to have other layers ends its attempt once for that, keeps them while its
// nodes stay, and does without them where they were of no use. Method: a run by hand.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "test/runtime/supervise/decide/recovery_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("other layers of stages are a reason to regroup once, and go with each further attempt") {
  Run run(recovery_options(1, {"a", "b"}));
  CHECK(run.start.stage_layers.empty());
  run.recovery.move_layers({1, 3});
  CHECK(run.recovery.regroup(100) == Regroup::none);  // no step yet
  run.recovery.progressed(5);
  REQUIRE(run.recovery.regroup(100) == Regroup::other_layers);
  CHECK(text_of(Regroup::other_layers) != "");
  run.recovery.saved(5);
  run.recovery.attempt_ended({.how = AttemptEnd::regrouped}, 101);
  run.found(5);
  run.go();
  CHECK(run.start.stage_layers == std::vector<int64_t>{1, 3});
  CHECK(run.start.why.find("layers of stages 1, 3") != std::string::npos);
  run.recovery.progressed(6);
  CHECK(run.recovery.regroup(200) == Regroup::none);
  run.fail(ErrorCode::kWorker, 1, "a");
  run.found(5);
  run.go();
  CHECK(run.start.stage_layers == std::vector<int64_t>{1, 3});
  CHECK(run.start.why.find("layers") == std::string::npos);
  CHECK_FALSE(run.recovery.may_move_layers());
  // With these layers no attempt comes as far as a step: they go back, for good, and the run goes on.
  run.fail(ErrorCode::kPlan, 1, "a");
  run.found(5);
  run.go();
  CHECK(run.start.stage_layers.empty());
  CHECK_FALSE(run.recovery.may_move_layers());
}

TEST_CASE("other layers of stages go back with the nodes for which they were made") {
  Run run(recovery_options(2, {"a", "b", "c"}));  // c is a spare
  run.recovery.progressed(5);
  run.recovery.move_layers({1, 3});
  run.lose("a");
  CHECK(run.recovery.may_move_layers());
  run.found(5);
  run.go();
  CHECK(run.start.nodes == Names{"c", "b"});
  CHECK(run.start.stage_layers.empty());
  // At another width ranks of other stages are on a node.
  run.recovery.progressed(6);
  run.recovery.move_layers({1, 3});
  run.recovery.attempt_ended({.how = AttemptEnd::regrouped}, 101);
  run.found(6);
  run.go();
  REQUIRE(run.start.stage_layers == std::vector<int64_t>{1, 3});
  run.recovery.progressed(7);
  run.lose("b");
  run.found(7);
  run.go();
  CHECK(run.start.width.data == 1);
  CHECK(run.start.stage_layers.empty());
}
