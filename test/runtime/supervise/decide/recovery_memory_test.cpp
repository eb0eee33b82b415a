// Goal: what recovery does with a state in memory: it is loaded, passed over without cost if that fails, and not
// asked for again. Method: two short histories.
#include <catch2/catch.hpp>

#include "runtime/supervise/decide/recovery.h"

using namespace trainctl;

namespace {

/// Tensor groups of two on nodes of two slots.
Recovery::Options memory_options(int most_width, const std::vector<std::string>& nodes) {
  Recovery::Options o = {.tensor = 2, .nodes = nodes, .max_restarts = 100};
  for (int data = most_width; data >= 1; --data) o.widths.push_back({.data = data, .ranks = 2 * data});
  return o;
}

/// A run whose nodes are all ready and whose first attempt runs.
struct MemoryRun {
  Recovery recovery;
  StartAttempt start;

  explicit MemoryRun(const Recovery::Options& o) : recovery(o, 0) {
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
  auto o = memory_options(1, {"a"});
  o.max_restarts = 1;
  MemoryRun run(o);
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
  MemoryRun run(memory_options(2, {"a", "b", "c"}));
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

TEST_CASE("a resume asks the nodes for a newer state once the nodes that are being started are there") {
  auto o = memory_options(2, {"a", "b", "c"});
  o.from_step = 30;
  o.ask_nodes = true;
  Recovery recovery(o, 0);
  recovery.node_ready("a", 2, 0);
  recovery.node_ready("b", 2, 1);
  // Two nodes are enough to run; the third may hold what is missing.
  const auto wait = std::get<Wait>(recovery.next(1));
  CHECK(wait.until_s == o.ask_limit_s);
  CHECK_THAT(wait.why, Catch::Contains("1 node that may hold a newer state"));
  CHECK(std::holds_alternative<FindCheckpoint>(recovery.next(o.ask_limit_s)));
  recovery.node_ready("c", 2, 2);
  const auto find = std::get<FindCheckpoint>(recovery.next(2));
  CHECK_FALSE(find.at_most);
  CHECK(find.refused.empty());
  SECTION("they have one") {
    recovery.checkpoint_found(41, StateId{41, 1});
    const auto start = std::get<StartAttempt>(recovery.next(2));
    CHECK(start.step == 41);
    CHECK(start.in_memory == StateId{41, 1});
    recovery.attempt_started(start, 2);
    recovery.attempt_ended({.how = AttemptEnd::failed, .code = ErrorCode::kCheckpoint, .cause = "x"}, 3);
    CHECK(std::get<FindCheckpoint>(recovery.next(3)).refused == std::vector<StateId>{{41, 1}});
  }
  SECTION("they have none") {
    recovery.checkpoint_found(30);
    const auto start = std::get<StartAttempt>(recovery.next(2));
    CHECK(start.step == 30);
    CHECK_FALSE(start.in_memory);
  }
  SECTION("they cannot be reached from the ranks") {
    recovery.checkpoint_found(41, StateId{41, 1});
    recovery.memory_out_of_reach();
    CHECK(std::get<FindCheckpoint>(recovery.next(2)).refused == std::vector<StateId>{{41, 1}});
  }
}

TEST_CASE("a resume from a named step asks nobody, and one whose nodes are all there waits for none") {
  auto o = memory_options(1, {"a"});
  o.from_step = 30;
  o.ask_nodes = true;
  o.step_fixed = GENERATE(false, true);
  Recovery recovery(o, 0);
  recovery.node_ready("a", 2, 0);
  CHECK(std::holds_alternative<StartAttempt>(recovery.next(0)) == o.step_fixed);
  CHECK(std::holds_alternative<FindCheckpoint>(recovery.next(0)) != o.step_fixed);
}

TEST_CASE("a resume of a run that never saved, whose nodes hold nothing, begins at the start") {
  auto o = memory_options(1, {"a"});
  o.ask_nodes = true;
  Recovery recovery(o, 0);
  recovery.node_ready("a", 2, 0);
  REQUIRE(std::holds_alternative<FindCheckpoint>(recovery.next(0)));
  recovery.no_checkpoint(0);
  CHECK_FALSE(std::get<StartAttempt>(recovery.next(0)).step);
}
