// Goal: which steps are computed again: from the newest checkpoint that is old enough, else from the
// oldest, from the run's start where that was asked for; and a sentence where there is none.
// Method: lists of steps by hand.
#include <catch2/catch.hpp>

#include "runtime/supervise/start/replay.h"

using namespace trainctl;
using Catch::Matchers::Contains;

namespace {

struct Expected {
  std::vector<int64_t> saved;
  ReplayWish wish;
  std::optional<int64_t> from;
  int64_t to;
};

}  // namespace

TEST_CASE("a replay begins at the newest checkpoint that is old enough", "[replay]") {
  for (const Expected& e : {Expected{{12, 8, 4}, {}, 8, 12},
                            {{12, 8, 4}, {.steps = 4}, 8, 12},
                            {{12, 8, 4}, {.steps = 5}, 4, 12},
                            {{12, 8, 4}, {.steps = 12}, std::nullopt, 12},
                            {{12, 8, 4}, {.to = 8}, 4, 8},
                            {{4}, {.steps = 4}, std::nullopt, 4}}) {
    const ReplayRange range = choose_replay(e.saved, e.wish);
    CHECK(range.problem == "");
    CHECK(range.note == "");
    CHECK(range.from == e.from);
    CHECK(range.to == e.to);
  }
  const ReplayRange fewer = choose_replay({4, 8, 12}, {.steps = 9});
  CHECK(fewer.from == 4);
  CHECK_THAT(fewer.note, Contains("9 steps were asked for"));
}

TEST_CASE("where nothing can be computed again, a sentence says why", "[replay]") {
  CHECK_THAT(choose_replay({}, {}).problem, Contains("no checkpoint"));
  CHECK_THAT(choose_replay({8}, {}).problem, Contains("--steps 8 begins at the run's start"));
  CHECK_THAT(choose_replay({8}, {.begins_with_weights = false}).problem, Contains("keep_last = 2"));
  CHECK_THAT(choose_replay({8, 12}, {.to = 10}).problem, Contains("no checkpoint of step 10"));
}

TEST_CASE("other numerics and another tensor width are named", "[replay]") {
  ckpt::StateInfo state;
  state.numerics = "cpu v4";
  state.extra_json = R"({"mesh": {"tensor": 2}})";
  JobSpec job;
  job.parallelism.tensor = 2;
  CHECK(why_not_same_bits(state, job, "cpu v4") == "");
  CHECK_THAT(why_not_same_bits(state, job, "cpu v3"), Contains("other numerics (cpu v4, here cpu v3)"));
  job.parallelism.tensor = 1;
  CHECK_THAT(why_not_same_bits(state, job, "cpu v4"), Contains("tensor parallelism of 1"));
}
