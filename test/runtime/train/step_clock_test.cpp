// Goal: the phases of a step add up to its time, waits are counted once, and what happens between two steps
//       belongs to the next one, without evaluation and saving. Method: StepClock with times that the test gives.
#include "runtime/train/measure/step_clock.h"

#include <catch2/catch.hpp>

using namespace trainctl;

TEST_CASE("a step's phases contain no wait twice", "[step_time]") {
  StepClock clock;
  clock.begin({.s = 100, .waited_s = 7});
  clock.waited_for_data(0.5);
  clock.sums({.s = 104, .waited_s = 8});
  clock.end({.s = 110, .waited_s = 10}, 1.25, 1.5);
  const RankTimes& t = clock.times();
  CHECK(t.forward_s == 1.25);
  CHECK(t.backward_s == 1.5);
  CHECK(t.data_s == 0.5);
  CHECK(t.communication_s == 3);  // 10 - 7
  CHECK(t.optimizer_s == 4);      // 6 s since the sums, of which it waited 2
  CHECK(t.reporting_s == 0);      // the first step follows nothing
  CHECK(t.step_s == 10);
  CHECK(t.checkpoint_s == 0);
}

TEST_CASE("waits for experts and context are known where a rank has such peers", "[step_time]") {
  StepClock clock;
  clock.begin({.s = 100, .waited_s = 7, .waited_experts_s = 2, .waited_pipeline_s = 1});
  clock.end({.s = 110, .waited_s = 10, .waited_experts_s = 2.5, .waited_pipeline_s = 1.75}, 1, 2);
  CHECK(clock.times().pipeline_s == 0.75);
  CHECK(clock.times().experts_s == 0.5);
  CHECK(std::isnan(clock.times().context_s));
}

TEST_CASE("the time between two steps is reporting, unless it was evaluation or a save", "[step_time]") {
  StepClock clock;
  clock.begin({.s = 0});
  clock.end({.s = 10}, 0, 0);
  clock.evaluated(13);
  CHECK(clock.times().evaluation_s == 3);
  clock.saved(4);
  clock.begin({.s = 18});
  CHECK(clock.times().reporting_s == 1);  // 8 s, of which 3 evaluation and 4 saving
  clock.end({.s = 20}, 0, 0);
  CHECK(clock.times().step_s == 3);
  CHECK(clock.times().checkpoint_s == 4);  // of the save before this step
  clock.evaluated(20);
  CHECK(clock.times().evaluation_s == 0);
  clock.begin({.s = 21});
  clock.end({.s = 22}, 0, 0);
  CHECK(clock.times().reporting_s == 1);
  CHECK(clock.times().checkpoint_s == 0);
}
