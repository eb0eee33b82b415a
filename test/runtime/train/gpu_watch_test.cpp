// Goal: what a step reports of its GPU never makes the step wait, and the thread that asks ends with the rank.
// Method: a made-up reading that the test lets through one at a time, and one that never comes back.
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "runtime/train/measure/gpu_watch.h"
#include "test/support/child.h"

using namespace trainctl;

TEST_CASE("the last reading is there at once, also while the next one is under way", "[gpu_watch]") {
  struct Readings {
    std::promise<void> first, second;
    std::atomic<int> calls{0};
  };
  const auto readings = std::make_shared<Readings>();  // the thread may outlive the watch by a moment
  {
    GpuWatch watch(
        [readings]() -> kernels::GpuReadings {
          const int call = readings->calls++;
          if (call == 0) readings->first.get_future().wait();
          if (call == 1) readings->second.get_future().wait();
          return {.temperature_c = 50.0 + call, .power_w = std::nullopt, .sm_clock_mhz = 1980};
        },
        0);
    CHECK_FALSE(watch.last().temperature_c);
    readings->first.set_value();
    while (readings->calls < 2) std::this_thread::yield();  // the second is under way
    CHECK(watch.last().temperature_c == 50.0);
    CHECK_FALSE(watch.last().power_w);
    readings->second.set_value();
    while (readings->calls < 4) std::this_thread::yield();
    CHECK(watch.last().temperature_c >= 51.0);
  }
  CHECK(test::eventually(600, [&] { return readings.use_count() == 1; }));  // the thread has ended
}

TEST_CASE("a reading that does not come back does not keep the rank", "[gpu_watch]") {
  const auto never = std::make_shared<std::promise<void>>();
  {
    GpuWatch watch([held = never->get_future().share()]() -> kernels::GpuReadings {
      held.wait();
      return {};
    });
    CHECK_FALSE(watch.last().temperature_c);
  }
  never->set_value();   // the thread that was left behind ends here
}
