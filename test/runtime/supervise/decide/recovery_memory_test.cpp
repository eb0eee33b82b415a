// Goal: what recovery does with a state in memory: it is loaded, passed over without cost if that fails, and not
// asked for again. Method: two short histories.
#include <catch2/catch.hpp>

#include "runtime/supervise/decide/recovery.h"

using namespace trainctl;

namespace {

/// Tensor groups of two on nodes of two slots.
Recovery::Options options(int most_width, const std::vector<std::string>& nodes) {
  Recovery::Options o = {.tensor = 2, .nodes = nodes, .max_restarts = 100};
  for (int data = most_width; data >= 1; --data) o.widths.push_back({.data = data, .ranks = 2 * data});
  return o;
}

/// A run whose nodes are all ready and whose first attempt runs.
struct Run {
  Recovery recovery;
  StartAttempt start;

  explicit Run(const Recovery::Options& o) : recovery(o, 0) {
    for (const std::string& name : o.nodes) recovery.node_ready(name, 2, 0);
    go();
  }
  Decision next() { return recovery.next(0); }
  void go() {
    const Decision d = next();
    REQUIRE(std::holds_alternative<StartAttempt>(d));
    start = std::get<StartAttempt>(d);
    recovery.attempt_started(start, 0);
  }
  void fail(ErrorCode code, const std::string& node = "a") {
    recovery.attempt_ended(
        {.how = AttemptEnd::failed, .code = code, .cause = "it broke", .rank = 0, .node = node}, 0);
  }
  void lose(const std::string& name) {
    recovery.node_lost(name, "silent", 0);
    fail(ErrorCode::kHang, name);
  }
};

}  // namespace

TEST_CASE("a state in memory that cannot be loaded costs no restart and is not asked for again") {
  auto o = options(1, {"a"});
  o.max_restarts = 1;
  Run run(o);
  run.recovery.progressed(41);
  run.recovery.saved(30);
  run.fail(ErrorCode::kWorker);
  CHECK(std::get<FindCheckpoint>(run.next()).refused.empty());
  run.recovery.checkpoint_found(41, StateId{41, 1});
  run.go();
  CHECK(run.start.step == 41);
  CHECK(run.start.in_memory == StateId{41, 1});
  run.fail(ErrorCode::kCheckpoint);
  const auto again = std::get<FindCheckpoint>(run.next());
  CHECK(again.refused == std::vector<StateId>{{41, 1}});
  CHECK_FALSE(again.at_most);  // a checkpoint of step 41 would do
  CHECK(run.recovery.restarts() == 1);
  run.recovery.checkpoint_found(40, StateId{40, 1});
  CHECK_THAT(std::get<StartAttempt>(run.next()).why, Catch::Contains("step 41 cannot be loaded from memory"));
  run.go();
  run.fail(ErrorCode::kCheckpoint);
  CHECK(std::get<FindCheckpoint>(run.next()).refused == std::vector<StateId>{{41, 1}, {40, 1}});
  run.recovery.checkpoint_found(30);
  run.go();
  CHECK_FALSE(run.start.in_memory);
  run.fail(ErrorCode::kCheckpoint);
  CHECK(std::get<FindCheckpoint>(run.next()).at_most == 29);
}

TEST_CASE("a state in memory out of reach is passed over before an attempt starts") {
  Run run(options(2, {"a", "b", "c"}));
  run.recovery.progressed(7);
  run.lose("b");
  REQUIRE(std::holds_alternative<FindCheckpoint>(run.next()));
  run.recovery.checkpoint_found(7, StateId{7, 1});
  REQUIRE(std::holds_alternative<StartAttempt>(run.next()));
  run.recovery.memory_out_of_reach();
  CHECK(std::get<FindCheckpoint>(run.next()).refused == std::vector<StateId>{{7, 1}});
  run.recovery.no_checkpoint(0);  // nothing was ever saved: it begins anew
  run.go();
  CHECK_FALSE(run.start.step);
  CHECK_FALSE(run.start.in_memory);
}
