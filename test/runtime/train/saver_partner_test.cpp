// Goal: second copies in the memory of another node cost the run nothing: a partner that is slow, refuses or
// breaks off costs its copy alone, a checkpoint goes first, and the copy before stays whole.
// Method: the Saver alone; the partner's memory is a file of this machine that blocks or fails.
#include <catch2/catch.hpp>
#include <thread>

#include "test/runtime/train/saver_rig.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("copies go to the partner, too, alone or on the way to the directory", "[saver]") {
  Rig rig;
  for (int64_t step = 1; step <= 8; ++step) {
    rig.step(step, {.memory = true, .partner = step % 2 == 0, .directory = step % 4 == 0});
    CHECK(rig.saver->finish());
  }
  CHECK(rig.copies() == std::vector<int64_t>{8, 7});
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{8, 6});
  CHECK(rig.saved() == std::vector<int64_t>{8, 4});
  CHECK((rig.is_whole(8) && rig.is_whole(4)));
  CHECK(rig.events == std::vector<std::string>{"checkpoint 4", "checkpoint 8"});
  CHECK(rig.faults.opened == 1);
}

TEST_CASE("a partner that refuses or breaks off costs its copy alone, and is tried again", "[saver]") {
  Rig rig;
  const auto save = [&](int64_t step, const SaveTargets& due) {
    rig.step(step, due);
    CHECK(rig.saver->finish());
  };
  rig.faults.refuses = true;
  save(1, kAll);
  rig.faults.refuses = false;
  save(2, kPartner);
  rig.faults.breaks = true;
  save(3, kAll);
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{2});
  rig.faults.breaks = false;
  save(4, kPartner);
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{4, 2});
  CHECK(rig.saved() == std::vector<int64_t>{3, 1});
  CHECK(rig.events ==
        std::vector<std::string>{"save_failed 1", "checkpoint 1", "save_failed 3", "checkpoint 3"});
  CHECK(rig.reasons[0] == "the partner refuses");
  CHECK(rig.reasons[2] == "the network is down");
  CHECK(rig.faults.opened == 3);
}

TEST_CASE("a slow copy to the partner makes way for a checkpoint", "[saver]") {
  const int64_t copies_between =
      GENERATE(0, 1);  // with one, the checkpoint needs the slot that is being sent
  Rig rig;
  rig.step(1, kPartner);
  CHECK(rig.saver->finish());
  Gate gate;
  rig.faults.gate = &gate;
  rig.step(2, kPartner);
  gate.await_visitor();
  for (int64_t i = 0; i < copies_between; ++i) rig.step(3 + i, kMemory);
  const int64_t last = 3 + copies_between;
  rig.step(last, kBoth);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{last, last - 1});
  gate.open();
  CHECK(rig.saver->finish());
  CHECK(rig.saved() == std::vector<int64_t>{last});
  CHECK(rig.is_whole(last));
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{1});
  CHECK(rig.events == std::vector<std::string>{fmt::format("checkpoint {}", last)});
  rig.step(last + 1, kPartner);
  CHECK(rig.saver->finish());
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{last + 1, 1});
}

TEST_CASE("a copy to the partner that hangs gives its slot free", "[saver]") {
  Rig rig(600, true, 0.05, "{}", 1e-9);
  Gate gate;
  rig.faults.gate = &gate;
  rig.step(1, kPartner);
  gate.await_visitor();
  for (int64_t step = 2; step <= 4; ++step) rig.step(step, kPartner);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{4, 3});
  CHECK(rig.events == std::vector<std::string>{"save_failed 1"});
  CHECK_FALSE(rig.saver->finish());
  gate.open();
  while (rig.saver->under_way().writing) std::this_thread::yield();
  CHECK(rig.copies_of_partner().empty());
}
