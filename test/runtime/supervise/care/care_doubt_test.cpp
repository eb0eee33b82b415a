// Goal: a checkpoint that was verified and is damaged later counts no more once a load has found it, also for the
// next process. Method: a caretaker whose checkpoints are damaged after they were read, and that is told.
#include "test/runtime/supervise/care/care_world.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a verified checkpoint that a load finds damaged counts no more before it was read again") {
  const World world = world_with_two_new();
  tended(world);
  const auto flip = [&](int64_t step) {
    world.fs->poke(fmt::format("{}/step-{:08}/shard-00001-of-00003.safetensors", kFolder, step),
                   [](std::string& text) { text[text.size() - 5] ^= 4; });
  };
  flip(40);  // the store has a copy
  flip(30);  // nothing has
  Care care;
  const auto caretaker_of = [&] {
    return std::make_unique<Caretaker>(*world.fs, *world.clock, options_of(world, care));
  };
  auto caretaker = caretaker_of();
  caretaker->begin(4, INT64_MAX);
  while (caretaker->work()) {
  }
  CHECK(care.reports.empty());  // each is read once
  CHECK(caretaker->progress().verified_step == 40);
  for (const int64_t step : {30, 40, 77}) caretaker->doubt(step);
  CHECK(caretaker->progress().verified_step < 30);
  caretaker = caretaker_of();  // the doubt outlives the process
  caretaker->begin(5, INT64_MAX);
  CHECK(caretaker->progress().verified_step < 30);
  while (caretaker->work()) {
  }
  CHECK(care.count(EventKind::checkpoint_repaired) == 1);
  CHECK(care.count(EventKind::checkpoint_damaged) == 1);
  CHECK(read_marks(*world.fs, kMarks).folder.size() == 1);
  CHECK(caretaker->progress().verified_step == 40);
  CHECK(world.folder()->list() == Steps{40, 30});
  caretaker->published();
  world.save(50);
  while (caretaker->work()) {
  }
  CHECK(world.folder()->list() == Steps{50, 40});  // the damaged one is no second good one, and goes
}

TEST_CASE("the newest checkpoint up to the step to go back to is kept, here and in the store") {
  World world;
  world.fs->make_directory("/run");
  Care care;
  Caretaker caretaker(*world.fs, *world.clock, options_of(world, care));
  caretaker.keep_upto(25);
  caretaker.begin(4, INT64_MAX);
  const auto save = [&](int64_t step) {
    world.save(step);
    caretaker.published();
    for (auto next_s = caretaker.work(); next_s; next_s = caretaker.work())
      world.clock->sleep_s(std::max(0.0, *next_s - world.clock->monotonic_s()));
  };
  for (const int64_t step : {10, 20, 30, 40, 50}) save(step);
  CHECK(world.folder()->list() == Steps{50, 40, 20});
  CHECK(world.place().store->list() == Steps{50, 40, 20});
  caretaker.keep_upto(50);
  save(60);
  CHECK(world.folder()->list() == Steps{60, 50});
}
