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
  job.schedule.total_steps = 1'000'000;  // until the ranks have seen enough
  const auto is_on_all = [&](int64_t step) {
    int ranks = 0;
    for (const auto& piece : ckpt::list_pieces(real_file_system(), partner.path()))
      ranks += piece.piece && piece.step == step;
    return ranks == 4;
  };
  // Copies take as long as they take: each report is right, and one of step 9 comes in the end.
  int64_t newest = -1;
  const double limit_s = real_clock().monotonic_s() + 600;
  const auto on_line = [&](const StepLine& line) {
    INFO(step_line_text(line));
    const int64_t found = line.partner_step.value_or(-2);
    CHECK((found == -2) == (line.step <= 3));
    if (line.step <= 3) return;
    CHECK((found == -1 || (found % 3 == 0 && found < line.step && found >= newest)));
    CHECK(line.partner_nodes == (found >= 0 ? 2 : 0));
    if (found >= 0) CHECK(is_on_all(found));
    newest = std::max(newest, found);
    if (newest >= 9) throw Error(ErrorCode::kUsage, "enough");
    if (real_clock().monotonic_s() > limit_s) throw Error(ErrorCode::kUsage, "no copy of step 9");
  };
  CHECK_THROWS_WITH(run_on_threads(job, {.dir = dir.path(),
                                         .memory_folder = memory.path(),
                                         .partner_folder = partner.path(),
                                         .on_line = on_line}),
                    "enough");
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
