// Goal: saving while training goes on costs no bit: runs that copy their state in memory and save it every
// step end with the bits of the undisturbed run, whatever happens to the disk. A state that changes while
// it is copied is never saved. A slow disk holds nothing up; a failing one fails saves only.
// Method: the decision exhaustively; the Saver alone with a state in plain arrays, a source that blocks
// until the test lets it go on, and a file system that blocks or fails; whole runs whose ranks are threads.
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <thread>

#include "test/runtime/train/saver_rig.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("what is saved while a write is under way", "[saver]") {
  const auto nothing = SaveTargets{};
  for (const SaveTargets& due : {nothing, kMemory, kDirectory, kBoth, kPartner, kAll})
    for (const bool is_newest : {false, true})
      for (const bool holds : {false, true})
        for (const bool lost : {false, true}) {
          CAPTURE(is_newest, holds, lost);
          const SavesUnderWay writes{.writing = true, .holds = holds, .lost = lost};
          const LeavingSave leaving{.is_newest = is_newest, .to_directory = true};
          const LeavingSave to_partner{.is_newest = is_newest};
          CHECK(decide(due, {.lost = lost}, leaving) == due);
          CHECK(decide(due, {.lost = lost}, to_partner) == due);
          // The newest copy gives its slot where the other one is being written from and is whole.
          const bool over_newest = holds && !is_newest;
          CHECK(copies_over_newest(writes, leaving) == over_newest);
          CHECK_FALSE(copies_over_newest({.lost = lost}, leaving));
          const SaveTargets copy = due.any() && !(over_newest && lost) ? kMemory : nothing;
          // The directory waits for the write; a copy in memory is made.
          CHECK(decide(due, writes, leaving) == copy);
          // A copy to the partner makes way for a checkpoint, and for nothing else.
          CHECK(decide(due, writes, to_partner) ==
                (due.directory ? SaveTargets{.memory = due.memory, .directory = true} : copy));
        }
}

TEST_CASE("copies and checkpoints of a state that changes every step", "[saver]") {
  Rig rig;
  for (int64_t step = 1; step <= 20; ++step) {
    rig.step(step, {.memory = true, .directory = step % 5 == 0});
    if (step % 5 == 0) CHECK(rig.saver->finish());
  }
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{20, 19});
  CHECK((rig.saver->newest_copy() == 20 && rig.saver->newest_staged() == 20));
  CHECK(rig.saved() == std::vector<int64_t>{20, 15, 10, 5});
  for (const int64_t step : rig.saved()) CHECK(rig.is_whole(step));
  CHECK(rig.events ==
        std::vector<std::string>{"checkpoint 5", "checkpoint 10", "checkpoint 15", "checkpoint 20"});
}

TEST_CASE("a job whose texts are long is copied and saved, too", "[saver]") {
  Rig rig(600, true, 600, "{\"train\": \"" + std::string(300 << 10, 'x') + "\"}");
  rig.step(1, {.memory = true, .directory = true});
  rig.saver->fence();
  rig.saver->write_now(rig.info(2));
  CHECK(rig.events == std::vector<std::string>{"checkpoint 1", "checkpoint 2"});
  CHECK(rig.copies() == std::vector<int64_t>{1});
  CHECK(ckpt::open_latest(rig.fs, "/ckpt", -1, nullptr)->state().resolved_spec_json == rig.spec);
}

TEST_CASE("without memory a save is written before training goes on", "[saver]") {
  Rig rig(600, false);
  for (int64_t step = 1; step <= 4; ++step) rig.step(step, {.memory = true, .directory = step % 2 == 0});
  CHECK(rig.saved() == std::vector<int64_t>{4, 2});
  CHECK((rig.is_whole(4) && rig.is_whole(2)));
  CHECK(rig.copies().empty());
}

TEST_CASE("a state that changes while it is copied is not saved, and the older copy stays", "[saver]") {
  Rig rig;
  rig.step(1, kBoth);
  CHECK(rig.saver->finish());
  Gate gate;
  rig.source.gate = &gate;
  rig.step(2, kBoth);
  gate.await_visitor();
  rig.change(3);  // without the fence
  gate.open();
  rig.saver->fence();
  CHECK(rig.saver->finish());
  CHECK(rig.copies() == std::vector<int64_t>{1});
  CHECK((rig.saver->newest_copy() == 1 && rig.saver->newest_staged() == 2));
  CHECK(rig.saved() == std::vector<int64_t>{1});
  CHECK(rig.events == std::vector<std::string>{"checkpoint 1", "save_failed 2", "save_failed 2"});
  CHECK_THAT(rig.reasons[1], Catch::Contains("the state changed while it was copied"));
}

TEST_CASE("the fence waits for the copy", "[saver]") {
  Rig rig;
  Gate gate;
  rig.source.gate = &gate;
  rig.step(1, kMemory);
  gate.await_visitor();
  std::atomic<bool> passed = false;
  std::thread fence([&] {
    rig.saver->fence();
    passed = true;
  });
  CHECK_FALSE(passed);
  gate.open();
  fence.join();
  CHECK(rig.copies() == std::vector<int64_t>{1});
}

TEST_CASE("a slow disk holds nothing up; newer saves give way to the one that is written", "[saver]") {
  Rig rig;
  Gate gate;
  rig.fs.gate = &gate;
  rig.step(1, kBoth);
  gate.await_visitor();
  for (int64_t step = 2; step <= 9; ++step) rig.step(step, kBoth);
  rig.saver->fence();
  // Step 1 is being written from one slot; the newest step is in the other one.
  CHECK(rig.copies() == std::vector<int64_t>{9, 1});
  CHECK(rig.saved().empty());
  CHECK(rig.has_event("save_superseded 9"));
  CHECK_FALSE(rig.has_event("save_failed 9"));
  gate.open();
  while (rig.saver->under_way().writing) std::this_thread::yield();
  rig.step(10, kBoth);
  while (rig.saver->under_way().writing) std::this_thread::yield();
  CHECK(rig.saved() == std::vector<int64_t>{10, 1});
  CHECK((rig.is_whole(1) && rig.is_whole(10)));
  CHECK(rig.copies() == std::vector<int64_t>{10, 9});
}

TEST_CASE("while a slow write goes on, a rank lost between two copies costs one step", "[saver]") {
  Rig rig;
  Gate disk, copy;
  rig.fs.gate = &disk;
  rig.step(1, kBoth);
  disk.await_visitor();
  const auto steps_lost = [&](int64_t step) { return step - rig.copies().front(); };
  for (int64_t step = 2; step <= 9; ++step) {
    rig.step(step, kMemory);
    rig.saver->fence();
    CHECK(steps_lost(step + 1) == 1);  // it dies in the next step
  }
  rig.source.gate = &copy;
  rig.step(10, kMemory);
  copy.await_visitor();
  CHECK(steps_lost(10) == 9);  // during a copy: back to what is being written
  copy.open();
  rig.source.gate = nullptr;
  rig.saver->fence();
  CHECK(steps_lost(11) == 1);
  disk.open();
  CHECK(rig.saver->finish());
  CHECK(rig.is_whole(1));  // what was written from its slot meanwhile
  // Then each copy has an older one again.
  rig.step(11, kMemory);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{11, 10});
}

TEST_CASE("a copy that is void keeps the newest copy while others write theirs", "[saver]") {
  Rig rig;
  Gate gate;
  rig.step(1, kMemory);
  rig.saver->fence();
  rig.source.gate = &gate;
  rig.step(2, kBoth);
  gate.await_visitor();
  rig.change(3);  // without the fence
  gate.open();
  rig.source.gate = nullptr;
  rig.saver->fence();
  CHECK(rig.saver->finish());
  CHECK(rig.saver->under_way().lost);
  const SavesUnderWay others{.writing = true, .holds = true, .lost = true};
  rig.saver->stage(rig.info(3), kMemory, others);
  rig.saver->fence();
  CHECK(rig.saver->stage(rig.info(4), kMemory, others) == SaveTargets{});
  CHECK(rig.copies() == std::vector<int64_t>{3, 1});
  rig.step(5, kBoth);
  CHECK(rig.saver->finish());
  CHECK_FALSE(rig.saver->under_way().lost);
}

TEST_CASE("a write that hangs fails, gives its slot free, and does not hold up the end", "[saver]") {
  Rig rig(1e-9, true, 0.05);
  Gate gate;
  rig.fs.gate = &gate;
  rig.step(1, kBoth);
  gate.await_visitor();
  for (int64_t step = 2; step <= 4; ++step) rig.step(step, kBoth);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{4, 3});
  CHECK(rig.has_event("save_failed 1"));
  CHECK_FALSE(rig.saver->finish());  // after exit_timeout_s
  gate.open();
  while (rig.saver->under_way().writing) std::this_thread::yield();
  CHECK(rig.saved().empty());
  CHECK(rig.events.size() == 4);  // the save failed once; three gave way
}

TEST_CASE("each effect on the disk fails once: the older checkpoint remains and the next save succeeds",
          "[saver]") {
  for (const Fault fault : {Fault::io_error_once, Fault::no_space_from_here, Fault::io_error_from_here})
    for (const SaveTargets& due : {kBoth, kDirectory}) {
      uint64_t effect = 0;
      for (bool failed = true; failed; ++effect) {
        INFO("effect " << effect << ", fault " << int(fault));
        Rig rig(600, due.memory);
        rig.step(1, due);
        CHECK(rig.saver->finish());
        const size_t before = rig.fs.below.effects().size();
        rig.fs.below.fail_at(effect, fault);
        rig.step(2, due);
        CHECK(rig.saver->finish());
        failed = rig.fs.below.effects().size() - before > effect;
        rig.fs.below.repair();
        CHECK(rig.is_whole(1));
        CHECK(rig.has_event("checkpoint 2") != rig.has_event("save_failed 2"));
        if (rig.has_event("checkpoint 2")) CHECK(rig.is_whole(2));
        rig.step(3, due);
        CHECK(rig.saver->finish());
        REQUIRE(rig.has_event("checkpoint 3"));
        CHECK(rig.is_whole(3));
      }
      CHECK(effect > 10);
    }
}

TEST_CASE("the last save comes after the writes under way", "[saver]") {
  Rig rig;
  rig.step(1, kBoth);
  rig.saver->fence();
  rig.change(2);
  const int64_t number = rig.saver->write_now(rig.info(2));
  CHECK(rig.controls[0]->await_saved(number).ok);
  CHECK(rig.saved() == std::vector<int64_t>{2, 1});
  CHECK((rig.is_whole(1) && rig.is_whole(2)));
}

// ---- whole runs

TEST_CASE("a run that saves every step has the bits of one that saves at its end", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::llama, dir.path());
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path() + "/whole"});
  job.checkpoint.every_steps = 1;
  std::map<EventKind, int> count;
  for (const auto& [dp, pp, zero] : {std::tuple{1, 1, 0}, {2, 1, 1}, {2, 2, 1}, {4, 2, 0}}) {
    INFO("dp " << dp << ", pp " << pp);
    job.parallelism.data = dp;
    job.parallelism.pipeline = pp;
    job.parallelism.zero_stage = zero;
    job.parallelism.lanes = 4;
    JobSpec plain = job;
    plain.checkpoint.every_steps = 0;
    const std::string at = fmt::format("{}/{}-{}", dir.path(), dp, pp);
    const ThreadRun undisturbed = run_on_threads(plain, {.dir = at + "-plain"});
    const ThreadRun run = run_on_threads(
        job,
        {.dir = at, .memory_folder = memory.path(), .on_event = [&](EventKind kind, const std::string& json) {
           INFO(json);
           CHECK(kind != EventKind::save_failed);
           ++count[kind];
         }});
    CHECK(run.losses == undisturbed.losses);
    CHECK(run.root_hash == undisturbed.root_hash);
    std::map<int64_t, int> ranks;
    for (const auto& piece : ckpt::list_pieces(real_file_system(), memory.path()))
      if (piece.ranks == dp * pp) ++ranks[piece.step];
    // The last step is saved to the directory alone.
    REQUIRE_FALSE(ranks.empty());
    CHECK(ranks.rbegin()->second == dp * pp);
    CHECK(ranks.rbegin()->first <= 19);
    std::filesystem::remove_all(memory.path());
    std::filesystem::create_directory(memory.path());
  }
  CHECK(count[EventKind::checkpoint] >= 8);
}

TEST_CASE("each step reports the newest state that all ranks hold in memory", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.pipeline = 2;
  job.parallelism.lanes = 2;
  const auto staged_steps = [&](const std::string& memory_folder) {
    std::vector<int64_t> steps;  // -2: not reported
    for (const std::string& line :
         run_on_threads(job, {.dir = dir.path(), .max_steps = 7, .memory_folder = memory_folder}).lines)
      steps.push_back(parse_json(line).value("staged_step", int64_t(-2)));
    return steps;
  };
  CHECK(staged_steps(memory.path()) == std::vector<int64_t>{-2, 1, 2, 3, 4, 5, 6});
  job.checkpoint.memory_every_steps = 3;
  CHECK(staged_steps(memory.path()) == std::vector<int64_t>{-2, -2, -2, 3, 3, 3, 6});
  CHECK(staged_steps("") == std::vector<int64_t>(7, -2));
}

TEST_CASE("a run whose disk fails for a while trains on with the same bits", "[saver]") {
  const TemporaryFolder dir, memory("saver", "/dev/shm");
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  job.parallelism.data = 2;
  job.parallelism.lanes = 2;
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path()});
  job.checkpoint.every_steps = 2;
  PowerLossFileSystem disk;
  int failures = 0, steps = 0;
  const ThreadRun run = run_on_threads(job, {.dir = "/run",
                                             .memory_folder = memory.path(),
                                             .checkpoint_files = &disk,
                                             .on_event =
                                                 [&](EventKind kind, const std::string&) {
                                                   if (kind == EventKind::save_failed) ++failures;
                                                 },
                                             .on_report =
                                                 [&] {
                                                   ++steps;
                                                   if (steps == 5) disk.fail_at(0, Fault::no_space_from_here);
                                                   if (steps == 15) disk.repair();
                                                 }});
  CHECK(failures > 0);
  CHECK(run.losses == whole.losses);
  CHECK(run.root_hash == whole.root_hash);
}
