// Goal: the care for checkpoints leaves the line to training, stops for a pause, and does not outlast a run
// whose store is dead.
// Method: a caretaker on a clock that only moves when it sleeps; its thread with a store that refuses all.
#include <catch2/catch.hpp>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "test/runtime/supervise/care/care_world.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("copying that rests leaves the line to training for three quarters of the time") {
  CHECK(store_rest_s(10) == 30);
  const World world = world_with_two_new();
  struct Copy {
    double ended_s, seconds;
  };
  std::vector<Copy> copies;
  Care care;
  CareOptions options = options_of(world, care);
  options.store_rests = true;
  options.store_every_steps = 1000;                     // does not count
  options.go_on = [&] { world.clock->sleep_s(0.01); };  // a read
  options.report = [&](const CareReport& report) {
    if (report.kind == EventKind::checkpoint_uploaded)
      copies.push_back({world.clock->monotonic_s(), parse_json(report.json).at("seconds")});
  };
  Caretaker caretaker(*world.fs, *world.clock, options);
  caretaker.begin(4, INT64_MAX);
  int64_t newest = 40;
  for (int turns = 0; turns < 300; ++turns) {
    const double now_s = world.clock->monotonic_s(), next_s = caretaker.work().value_or(now_s + 1);
    world.clock->sleep_s(std::clamp(next_s - world.clock->monotonic_s(), 0.0, 1.0));
    if (turns % 8 == 0) world.save(newest += 10), caretaker.published();
  }
  REQUIRE(copies.size() > 3);
  for (size_t i = 1; i < copies.size(); ++i) {
    REQUIRE(copies[i - 1].seconds > 0);
    CHECK(copies[i].ended_s - copies[i].seconds >= copies[i - 1].ended_s + 3 * copies[i - 1].seconds - 1e-6);
  }
  // The end of the run waits for nothing.
  world.save(newest += 10);
  caretaker.hurry();
  caretaker.published();
  while (caretaker.work()) {
  }
  CHECK(caretaker.progress().uploaded_step == newest);
}

TEST_CASE("the thread: everything is done at the end, a pause stops it, a dead store does not hold it") {
  constexpr double kPatienceS = 1200;  // with a thread that a busy machine stops
  World world = world_with_two_new();
  CareOptions options{.directory = kFolder, .marks_path = kMarks, .store = "/copies/a"};
  {
    CareThread thread(*world.fs, real_clock(), options, kPatienceS);
    thread.begin(4, INT64_MAX);
    CHECK(thread.finish(600, [] { return false; }).is_none());
    CHECK(thread.progress() == CareProgress{40, 40, 40});
    CHECK(thread.take_reports().size() >= 3);
    CHECK(ckpt::directory_store(*world.fs, "/copies/a")->list() == Steps{40});
  }
  world.save(50);
  options.open_store = [](uint64_t) -> ckpt::OpenPlace { throw Error(ErrorCode::kIo, "the line is cut"); };
  options.read_bytes_per_s = 1;  // it sleeps in its first read
  CareThread thread(*world.fs, real_clock(), options, kPatienceS);
  thread.begin(4, INT64_MAX);
  thread.pause();
  const size_t effects = world.fs->effects().size();
  thread.published();
  CHECK(world.fs->effects().size() == effects);
  CHECK(thread.progress().verified_step == 40);
  thread.begin(5, INT64_MAX);
  CHECK_THAT(thread.finish(600, [] { return false; }).text(),
             Catch::Contains("checkpoint step 50 was not copied to /copies/a: the line is cut"));
  CHECK(thread.progress().verified_step == 50);
}
