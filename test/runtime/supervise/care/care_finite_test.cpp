// Goal: a state that is not finite is noticed, and costs no checkpoint that is.
// Method: a folder and a store in memory, with saves that hold an infinity.
#include "test/runtime/supervise/care/care_world.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a state that is not finite is marked, counted and copied nowhere, and pushes no finite one out") {
  World world;
  world.fs->make_directory("/run");
  for (const int64_t step : {10, 20}) world.save(step);
  tended(world);
  CHECK(world.folder()->list() == Steps{20, 10});
  Care care;
  Caretaker caretaker(*world.fs, *world.clock, options_of(world, care));
  caretaker.begin(4, INT64_MAX);
  const auto tend_it = [&] {
    while (const auto next_s = caretaker.work()) {
      if (*next_s > world.clock->monotonic_s() + 1e4) break;
      world.clock->sleep_s(std::max(0.0, *next_s - world.clock->monotonic_s()));
    }
  };
  for (int saves = 1; saves <= 4; ++saves) {
    world.save_not_finite(20 + 10 * saves);
    tend_it();
    CHECK(world.folder()->list() == Steps{20 + 10 * saves, 20, 10});
    CHECK(caretaker.progress().not_finite_saves == saves);
    CHECK(caretaker.progress().finite_step == 20);
    CHECK(caretaker.progress().uploaded_step == 20);
  }
  CHECK(care.note(EventKind::checkpoint_verified).find("does not count, step 20 is kept") !=
        std::string::npos);
  CHECK(read_marks(*world.fs, kMarks).folder.back().not_finite > 0);
  world.save(70);
  tend_it();
  CHECK(world.folder()->list() == Steps{70, 20});
  CHECK(caretaker.progress().not_finite_saves == 0);
  CHECK(caretaker.progress().uploaded_step == 70);
}
