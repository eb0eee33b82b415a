// Goal: second copies in the memory of another node cost the run nothing: a partner that is slow, refuses or
// breaks off costs its copy alone, a checkpoint goes first, and the copy before stays whole.
// Method: the Saver alone; the partner's memory is a file of this machine that blocks or fails.
#include <catch2/catch.hpp>
#include <thread>

#include "runtime/base/json.h"
#include "test/runtime/train/saver_rig.h"
#include "test/support/child.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("copies go to the partner, too, alone or on the way to the directory", "[saver]") {
  Rig rig;
  for (int64_t step = 1; step <= 8; ++step) {
    rig.step(step, {.memory = true, .partner = step % 2 == 0, .directory = step % 4 == 0});
    CHECK(rig.finish());
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
    CHECK(rig.finish());
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
  CHECK(rig.faults.opened == 4);
}

TEST_CASE("a connection that the partner has closed meanwhile is opened again, once for each copy",
          "[saver]") {
  Rig rig;
  const auto save = [&](int64_t step) {
    rig.step(step, kPartner);
    CHECK(rig.finish());
  };
  save(1);
  rig.faults.breaks_once = true;
  save(2);
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{2, 1});
  CHECK(rig.events.empty());
  CHECK(rig.faults.opened == 2);
  CHECK_FALSE(rig.saver->under_way().no_partner);
  rig.faults.breaks = true;
  save(3);
  CHECK(rig.faults.opened == 3);
  CHECK(rig.events == std::vector<std::string>{"save_failed 3"});
  CHECK(rig.saver->under_way().no_partner);
  save(4);  // a new connection is not opened again
  CHECK(rig.faults.opened == 4);
  rig.faults.breaks = false;
  save(5);
  CHECK_FALSE(rig.saver->under_way().no_partner);
  CHECK(rig.copies_of_partner().front() == 5);
}

TEST_CASE("a slow copy to the partner makes way for a checkpoint", "[saver]") {
  const int64_t copies_between =
      GENERATE(0, 1);  // with one, the checkpoint needs the slot that is being sent
  Gate gate;
  Rig rig;
  rig.step(1, kPartner);
  CHECK(rig.finish());
  rig.faults.gate = &gate;
  rig.step(2, kPartner);
  gate.await_visitor();
  for (int64_t i = 0; i < copies_between; ++i) rig.step(3 + i, kMemory);
  const int64_t last = 3 + copies_between;
  rig.step(last, kBoth);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{last, last - 1});
  gate.open();
  CHECK(rig.finish());
  CHECK(rig.saved() == std::vector<int64_t>{last});
  CHECK(rig.is_whole(last));
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{1});
  CHECK(rig.events == std::vector<std::string>{fmt::format("checkpoint {}", last)});
  rig.step(last + 1, kPartner);
  CHECK(rig.finish());
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{last + 1, 1});
}

TEST_CASE("a copy to the partner that hangs gives its slot free", "[saver]") {
  Gate gate;
  Rig rig({.partner_timeout_s = 3});
  rig.faults.gate = &gate;
  rig.step(1, kPartner);
  gate.await_visitor();
  rig.clock.pass(3.5);
  for (int64_t step = 2; step <= 4; ++step) rig.step(step, kPartner);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{4, 3});
  CHECK(rig.events == std::vector<std::string>{"save_failed 1"});
  CHECK(rig.reasons[0] == "nothing was written for 3.5 s (fault_tolerance.collective_timeout_seconds)");
  CHECK_FALSE(rig.finish());
  gate.open();
  while (rig.saver->under_way().writing) std::this_thread::yield();
  CHECK(rig.copies_of_partner().empty());
}

TEST_CASE("a rank knows which of its second copies are whole", "[saver]") {
  using Steps = Saver::TwoSteps;
  Gate gate;
  Rig rig;
  CHECK((rig.saver->second_copies() == Steps{-1, -1} && rig.saver->second_copies_begun() == Steps{-1, -1}));
  const auto save = [&](int64_t step, const SaveTargets& due) {
    rig.step(step, due);
    CHECK(rig.finish());
  };
  save(1, kPartner);
  CHECK((rig.saver->second_copies() == Steps{1, -1} && rig.saver->second_copies_begun() == Steps{1, -1}));
  save(2, kBoth);  // not to the partner
  save(3, kAll);
  CHECK((rig.saver->second_copies() == Steps{3, 1} && rig.saver->second_copies_begun() == Steps{3, 1}));
  // The next one takes the place of the older.
  rig.faults.gate = &gate;
  rig.step(4, kPartner);
  gate.await_visitor();
  CHECK((rig.saver->second_copies() == Steps{3, -1} && rig.saver->second_copies_begun() == Steps{4, 3}));
  // It makes way for a checkpoint: the one before is whole.
  rig.step(5, kBoth);
  gate.open();
  CHECK(rig.finish());
  CHECK((rig.saver->second_copies() == Steps{3, -1} && rig.saver->second_copies_begun() == Steps{4, 3}));
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{3});
  rig.faults.gate = nullptr;
  save(6, kPartner);
  CHECK(rig.saver->second_copies() == Steps{6, 3});
  // After a failure it is not known what the partner holds.
  rig.faults.breaks = true;
  save(7, kPartner);
  CHECK((rig.saver->second_copies() == Steps{-1, -1} && rig.saver->second_copies_begun() == Steps{7, 6}));
  rig.faults.breaks = false;
  save(8, kPartner);
  CHECK(rig.saver->second_copies() == Steps{8, -1});
}

TEST_CASE("each step reports the newest state of which all ranks have second copies", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm"), partner("partner", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.pipeline = 2;
  job.parallelism.lanes = 2;
  job.checkpoint.every_steps = 0;
  job.checkpoint.partner_every_steps = 3;
  int64_t step = 0;
  const auto has_all = [&](int64_t wanted) {
    int ranks = 0;
    for (const auto& piece : ckpt::list_pieces(real_file_system(), partner.path()))
      ranks += piece.step == wanted;
    return ranks == 4;
  };
  // A report comes after the copy of the step before has begun: rank 0 goes on when it is there.
  const auto on_report = [&] {
    const int64_t begun = step++ / 3 * 3;
    CHECK((begun == 0 || eventually(60, [&] { return has_all(begun); })));
  };
  const ThreadRun run = run_on_threads(job, {.dir = dir.path(),
                                             .max_steps = 12,
                                             .memory_folder = memory.path(),
                                             .partner_folder = partner.path(),
                                             .on_report = on_report});
  REQUIRE(run.lines.size() == 12);
  int64_t newest = -1;
  for (size_t i = 0; i < run.lines.size(); ++i) {
    INFO(run.lines[i]);
    const auto line = parse_json(run.lines[i]);
    const int64_t during = int64_t(i) + 1;
    const int64_t found = line.value("partner_step", int64_t(-2));
    CHECK((found == -2) == (during <= 3));
    if (during <= 3) continue;
    CHECK((found == -1 || (found % 3 == 0 && found < during && found >= newest)));
    CHECK(line.value("partner_nodes", 0) == (found >= 0 ? 2 : 0));
    newest = std::max(newest, found);
  }
  // Two steps after the copy has come, at the latest, every rank knows.
  CHECK(parse_json(run.lines[11]).at("partner_step") == 9);
  CHECK(parse_json(run.lines[8]).at("partner_step") == 6);
  CHECK(parse_json(run.lines[5]).at("partner_step") == 3);
}

TEST_CASE("second copies that cannot be made are never reported", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.lanes = 2;
  job.checkpoint.every_steps = 0;
  job.checkpoint.partner_every_steps = 2;
  const ThreadRun run = run_on_threads(job, {.dir = dir.path(),
                                             .max_steps = 8,
                                             .memory_folder = memory.path(),
                                             .partner_folder = dir.path() + "/absent"});
  for (size_t i = 2; i < run.lines.size(); ++i) {
    INFO(run.lines[i]);
    CHECK(parse_json(run.lines[i]).at("partner_step") == -1);
    CHECK_FALSE(parse_json(run.lines[i]).contains("partner_nodes"));
  }
}
