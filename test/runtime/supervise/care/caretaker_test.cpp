// Goal: a saved checkpoint is read again once, counted when it is good, repaired or passed over when it is not,
// and copied to the store; whatever crashes, fails or is interrupted meanwhile, no fewer than two good
// checkpoints are left in either place, no mark lies, and the next caretaker brings all to the same end.
// Method: a caretaker on a file system that loses power and an object store that fails, crashed after each of
// its effects in either of them, interrupted at each of its reads, and with every request and effect failing
// in turn.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>

#include "ckpt/counting_file_system.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/supervise/preflight/storage.h"
#include "test/runtime/supervise/care/care_world.h"
#include "test/support/child.h"
#include "test/support/gates.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("the decisions of a caretaker") {
  CHECK((is_copy_due(10, -1, 0) && !is_copy_due(10, 10, 0) && is_copy_due(11, 10, 0)));
  CHECK((!is_copy_due(90, -1, 100) && is_copy_due(100, -1, 100) && !is_copy_due(190, 100, 100)));
  CHECK((is_copy_due(210, 100, 100) && is_copy_due(210, 190, 100) && !is_copy_due(250, 210, 100)));
  CHECK((care_retry_s(1) == 5 && care_retry_s(2) == 10 && care_retry_s(5) == 80 && care_retry_s(99) == 600));
}

TEST_CASE("new checkpoints are read once, counted, copied; older ones go") {
  const World world = world_with_two_new();
  const Care care = tended(world);
  CHECK(care.count(EventKind::checkpoint_verified) == 2);
  CHECK(care.count(EventKind::checkpoint_uploaded) == 1);  // the newest; 30 was passed
  CHECK(care.count(EventKind::checkpoints_removed) > 0);
  CHECK(not_brought_to_end(world) == "");
  CHECK(tended(world).reports.empty());
  world.fs->remove_file(kMarks);  // a hint: all is read again, and copied to where it is
  const Care again = tended(world);
  CHECK(again.count(EventKind::checkpoint_verified) == 2);
  CHECK_THAT(again.note(EventKind::checkpoint_uploaded), Catch::Contains("was there"));
}

TEST_CASE("no more checkpoints lie in the folder at once than the preflight counts") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::gpt2, dir.path());
  for (const int keep_last : {2, 3, 5}) {
    job.schedule.total_steps = 200;
    job.checkpoint = {.every_steps = 10, .keep_last = keep_last};
    World world;
    world.fs->make_directory("/run");
    size_t most = 0;
    for (int64_t step = 10; step <= 200; step += 10) {
      world.save(step);
      // The next one is written while this one waits to be verified.
      if (step < 200) most = std::max(most, world.folder()->list().size() + 1);
      Care care;
      CareOptions options = options_of(world, care);
      options.keep_last = keep_last;
      CHECK(tend(world, std::move(options)) == "");
    }
    CHECK(int64_t(most) == space_need(job, 0).at_once);
  }
}

TEST_CASE("a crash after every effect of the caretaker, in the folder and in the store") {
  const World before = world_with_two_new();
  int points = 0, doubles = 0;
  for (const bool in_store : {false, true})
    for (uint64_t n = 0;; ++n) {
      const World world = before.copy();
      in_store ? world.objects->stop_after(n) : world.fs->lose_power_after(n);
      bool crashed = false;
      Care care;
      try {
        tend(world, options_of(world, care));
      } catch (const PowerLost&) {
        crashed = true;
      }
      for (uint64_t seed = 0; seed < 6; ++seed) {
        const Survival survival = seed == 0   ? Survival::nothing
                                  : seed == 1 ? Survival::everything
                                              : Survival::random;
        World survivor = world.after_crash(survival, seed * 7919 + n);
        INFO((in_store ? "store" : "folder") << ", effect " << n << ", seed " << seed);
        REQUIRE(broken(survivor) == "");
        ++points;
        if (seed > 2) {  // the next one dies, too
          survivor.fs->lose_power_after((n * 31 + seed * 17) % 60);
          Care second;
          try {
            tend(survivor, options_of(survivor, second));
          } catch (const PowerLost&) {
            ++doubles;
          }
          survivor = survivor.after_crash(Survival::random, n + seed);
          REQUIRE(broken(survivor) == "");
        }
        REQUIRE(not_brought_to_end(survivor) == "");
      }
      if (!crashed) break;
    }
  INFO(points << " points, " << doubles << " double crashes");
  CHECK(points > 300);
  CHECK(doubles > 50);
}

TEST_CASE("a caretaker that is interrupted at every read is followed by another") {
  const World before = world_with_two_new();
  int interrupted = 0;
  for (int n = 0;; ++n) {
    const World world = before.copy();
    Care care;
    CareOptions options = options_of(world, care);
    int left = n;
    options.go_on = [&] {
      if (left-- == 0) throw CareInterrupted{};
    };
    try {
      tend(world, options);
      break;
    } catch (const CareInterrupted&) {
      ++interrupted;
    }
    INFO("read " << n);
    REQUIRE(broken(world) == "");
    REQUIRE(not_brought_to_end(world) == "");
  }
  CHECK(interrupted > 200);
}

TEST_CASE("every request of the store fails once, or for a while") {
  const World before = world_with_two_new();
  int alarms = 0;
  for (const ObjectFault fault : kPassingFaults)
    for (const uint64_t count : {1, 40}) {
      bool is_beyond = false;
      for (uint64_t n = 0; !is_beyond; ++n) {
        const World world = before.copy();
        const uint64_t requests = world.objects->requests();
        world.objects->fail_at(n, fault, count);
        INFO("request " << n << ", fault " << int(fault) << ", " << count << " times");
        Care care;
        REQUIRE(tend(world, options_of(world, care)) == "");
        is_beyond = world.objects->requests() <= requests + n;
        world.objects->repair();
        REQUIRE(care.count(EventKind::upload_failed) <= 1);
        REQUIRE(care.count(EventKind::checkpoint_verified) == 2);
        alarms += care.count(EventKind::upload_failed);
        REQUIRE(not_brought_to_end(world) == "");
      }
    }
  CHECK(alarms > 20);
}

TEST_CASE("a store that refuses is said once, and tried again with growing pauses") {
  const World world = world_with_two_new();
  world.objects->fail_at(0, ObjectFault::refused, ~uint64_t(0));
  Care care;
  Caretaker caretaker(*world.fs, *world.clock, options_of(world, care));
  caretaker.begin(4, INT64_MAX);
  std::vector<double> pauses;
  while (pauses.size() < 5) {
    const auto next_s = caretaker.work();
    REQUIRE(next_s);
    const double pause_s = *next_s - world.clock->monotonic_s();
    if (pause_s > 0) pauses.push_back(pause_s);
    if (pause_s > 0) world.clock->sleep_s(pause_s);
  }
  CHECK(pauses == std::vector<double>{5, 10, 20, 40, 80});
  CHECK(care.count(EventKind::upload_failed) == 1);
  CHECK_THAT(care.note(EventKind::upload_failed),
             Catch::Contains("403") && Catch::Contains("training goes on"));
  CHECK(world.folder()->list() == Steps{40, 30});  // the folder is tended all the same
  CHECK_THAT(caretaker.left_over().text(), Catch::Contains("step 40 was not copied to s3://b/runs/a: "));
  world.objects->repair();
  CHECK_THAT(tended(world).note(EventKind::checkpoint_uploaded),
             Catch::Contains("step 40 copied to s3://b/runs/a"));
}

TEST_CASE("every effect in the folder fails once, or the disk is full") {
  const World before = world_with_two_new();
  int failed = 0;
  for (const Fault fault : {Fault::io_error_once, Fault::no_space_from_here, Fault::io_error_from_here})
    for (uint64_t n = 0;; ++n) {
      const World world = before.copy();
      const size_t effects = world.fs->effects().size();
      world.fs->fail_at(n, fault);
      INFO("effect " << n << ", fault " << int(fault));
      Care care;
      tend(world, options_of(world, care), 30);
      const bool is_beyond = world.fs->effects().size() <= effects + n;
      world.fs->repair();
      failed += care.count(EventKind::care_failed);
      REQUIRE(care.count(EventKind::checkpoint_damaged) == 0);
      REQUIRE(broken(world) == "");
      REQUIRE(not_brought_to_end(world) == "");
      if (is_beyond) break;
    }
  CHECK(failed > 20);
}

TEST_CASE("every call of the folder's file system fails once, or for a while, also one that only looks") {
  const World before = world_with_two_new();
  int64_t calls_for_marks = 0;
  ckpt::CountingFileSystem counted(*before.fs, {.asked = [&] { ++calls_for_marks; }});
  Care unused;
  Caretaker(counted, *before.clock, options_of(before, unused));
  int failed = 0;
  for (const int64_t times : {1, 30})
    for (int64_t n = 0;; ++n) {
      const World world = before.copy();
      int64_t calls = 0;
      ckpt::CountingFileSystem failing(*world.fs, {.asked = [&] {
        const int64_t call = calls++;
        if (call >= n && call - n < times) throw Error(ErrorCode::kIo, "Input/output error");
      }});
      INFO("call " << n << " fails, " << times << " times");
      Care care;
      tend(world, options_of(world, care), 1000, &failing);
      failed += care.count(EventKind::care_failed);
      REQUIRE(broken(world) == "");
      REQUIRE(not_brought_to_end(world, n < calls_for_marks) == "");
      if (calls <= n) break;
    }
  CHECK(failed > 20);
}

TEST_CASE("a jump of the system's clock changes nothing of the care") {
  for (const double jump_s : {-1e9, 1e9}) {
    const World world = world_with_two_new();
    Care care;
    CareOptions options = options_of(world, care);
    options.read_bytes_per_s = 10'000;
    options.go_on = [&] { world.clock->jump(jump_s); };
    world.objects->fail_at(0, ObjectFault::refused, 3);
    const double begin_s = world.clock->monotonic_s();
    CHECK(tend(world, options) == "");
    CHECK(world.clock->monotonic_s() - begin_s < 100);
    CHECK(not_brought_to_end(world) == "");
  }
}

TEST_CASE("care goes on after a failure of any kind, and says it; it ends where another has the run") {
  const World world = world_with_two_new();
  Care care;
  CareOptions options = options_of(world, care);
  int failures = 0;
  options.open_store = [&](uint64_t epoch) {
    if (++failures == 1) throw std::bad_alloc();
    if (failures == 2) throw std::invalid_argument("stoull");
    return world.place(epoch);
  };
  int reads = 0;
  options.go_on = [&] {
    if (++reads == 3) throw std::runtime_error("a mistake of this program");
  };
  CHECK(tend(world, options) == "");
  CHECK_THAT(care.note(EventKind::upload_failed), Catch::Contains("tried again: std::bad_alloc"));
  CHECK_THAT(care.note(EventKind::care_failed), Catch::Contains("a mistake of this program"));
  CHECK(not_brought_to_end(world) == "");
  // It belongs to another supervisor: nothing is recorded.
  const World taken = world_with_two_new();
  Care other;
  CareOptions lost = options_of(taken, other);
  lost.must_hold = [] { throw Error(ErrorCode::kLauncher, "another supervisor has taken this run"); };
  CHECK_THROWS_AS(tend(taken, lost), CareTaken);
  CHECK(other.reports.empty());
}

TEST_CASE(
    "a damaged checkpoint does not count, is said with what to do, and is repaired where that is possible") {
  const std::string shard = kFolder + "/step-00000040/shard-00001-of-00003.safetensors";
  const auto flip = [&](const World& world) {
    world.fs->poke(shard, [](std::string& text) { text[text.size() - 5] ^= 4; });
  };
  SECTION("nothing has its bytes") {
    const World world = world_with_two_new();
    flip(world);
    Care care;
    CHECK(tend(world, options_of(world, care)) == "");
    CHECK(care.count(EventKind::checkpoint_damaged) == 1);
    CHECK_THAT(care.note(EventKind::checkpoint_damaged),
               Catch::Contains("checkpoint step 40 is damaged") &&
                   Catch::Contains("shard-00001-of-00003.safetensors") &&
                   Catch::Contains("trainctl inspect-ckpt /run/ckpt/step-00000040 --repair"));
    CHECK(world.folder()->list() == Steps{40, 30, 20});  // two that are good
    CHECK(world.place().store->list() == Steps{30, 20});
  }
  SECTION("the store has them") {
    const World world = world_with_two_new();
    tended(world);
    world.fs->remove_file(kMarks);
    flip(world);
    Care care = tended(world);
    CHECK_THAT(
        care.note(EventKind::checkpoint_repaired),
        Catch::Contains("step 40 was damaged") && Catch::Contains("from s3://b/runs/a/step-00000040.e3.a0"));
    CHECK(not_brought_to_end(world) == "");
  }
  SECTION("the checkpoint next to it has equal chunks") {
    World world;
    world.fs->make_directory("/run");
    PlainState state = make_state(7, 30);
    test::save(*world.fs, kFolder, state, 3);
    state.info.step = 40;
    test::save(*world.fs, kFolder, state, 3);
    flip(world);
    const Care care = tended(world);
    CHECK_THAT(care.note(EventKind::checkpoint_repaired), Catch::Contains("from /run/ckpt/step-00000030"));
    CHECK(ckpt::verify(*ckpt::Checkpoint::open(*world.fs, kFolder + "/step-00000040")).findings.empty());
  }
  SECTION("it is damaged after it was read, before it is copied") {
    const World world = world_with_two_new();
    Care care;
    CareOptions options = options_of(world, care);
    options.open_store = [&](uint64_t epoch) {
      if (care.count(EventKind::checkpoints_removed) > 0 && care.count(EventKind::checkpoint_damaged) == 0)
        flip(world);
      return world.place(epoch);
    };
    tend(world, options);
    CHECK(care.count(EventKind::checkpoint_damaged) == 1);
    CHECK(good_steps(*world.place().store) == world.place().store->list());
  }
}

TEST_CASE("a checkpoint that cannot be read for a while is no damaged one: it is read when it can be") {
  const std::string part = GENERATE(as<std::string>{}, "step-00000040/shard-00001-of-00003",
                                    "step-00000040/COMMIT", "step-00000040/manifest.json", "step-00000040/");
  INFO(part);
  const World world = world_with_two_new();
  world.fs->fail_reads_of(part);
  Care care;
  Caretaker caretaker(*world.fs, *world.clock, options_of(world, care));
  caretaker.begin(4, INT64_MAX);
  const auto work_for = [&](double seconds) {
    const double until_s = world.clock->monotonic_s() + seconds;
    for (int turns = 0; turns < 1000; ++turns) {
      const auto next_s = caretaker.work();
      if (!next_s || *next_s > until_s) return;
      world.clock->sleep_s(std::max(0.0, *next_s - world.clock->monotonic_s()));
    }
    FAIL("it does not come to an end");
  };
  work_for(20);
  CHECK(care.count(EventKind::checkpoint_damaged) == 0);
  CHECK(care.count(EventKind::care_failed) == 1);
  CHECK_THAT(care.note(EventKind::care_failed), Catch::Contains("checkpoint step 40 cannot be read again") &&
                                                    Catch::Contains("Input/output error"));
  CHECK(caretaker.progress().verified_step == 30);     // others are cared for meanwhile
  CHECK(world.folder()->list() == Steps{40, 30, 20});  // two that are known to be good
  world.fs->repair();
  work_for(1000);
  CHECK(caretaker.progress().verified_step == 40);
  CHECK(care.count(EventKind::checkpoint_damaged) == 0);
  CHECK(caretaker.left_over().text_or_empty() == "");
  CHECK(broken(world) == "");
  CHECK(world.folder()->list() == Steps{40, 30});
  CHECK(world.place().store->list() == Steps{40, 30});  // 30 was copied while 40 could not be read
}

TEST_CASE("what cannot be read is repaired where another place has it, and left over is said") {
  const World world = world_with_two_new();
  tended(world);  // the store has step 40
  world.fs->remove_file(kMarks);
  world.fs->fail_reads_of("step-00000040/shard-00001-of-00003");
  Care care;
  tend(world, options_of(world, care), 20);
  CHECK(care.count(EventKind::checkpoint_repaired) == 1);
  const World other = world_with_two_new();
  other.fs->fail_reads_of("step-00000040/shard-00001-of-00003");
  CHECK_THAT(tend(other, options_of(other, care), 20), Catch::Contains("step 40 was not read again"));
}

TEST_CASE("a run that goes back: later copies do not count any more") {
  const World world = world_with_two_new();
  tended(world);
  Care care;
  Caretaker caretaker(*world.fs, *world.clock, options_of(world, care));
  ckpt::supersede(*world.fs, kFolder, {"tiny-7Q2K", 5, 30});
  caretaker.begin(5, 30);
  while (caretaker.work()) {
  }
  CHECK(world.place().store->list() == Steps{30, 20});
  PlainState again = make_state(9, 40);
  again.info.epoch = 5;
  test::save(*world.fs, kFolder, again, 2);
  caretaker.published();
  while (caretaker.work()) {
  }
  const ckpt::OpenPlace place = world.place();
  const auto copy = ckpt::Checkpoint::open(place.store->open(40));
  CHECK((copy->state().epoch == 5 && reads_back(*copy, again)));
  CHECK(caretaker.progress() == CareProgress{40, 40, 40});
}

TEST_CASE("a caretaker of an older epoch changes nothing in the store of a newer one") {
  const World world = world_with_two_new();
  Care old_care, new_care;
  Caretaker older(*world.fs, *world.clock, options_of(world, old_care));
  older.begin(4, INT64_MAX);
  while (older.work()) {
  }
  Caretaker newer(*world.fs, *world.clock, options_of(world, new_care));
  newer.begin(5, 40);
  while (newer.work()) {
  }
  CHECK(newer.progress() == CareProgress{40, 40, 40});
  world.save(50);
  older.published();
  for (int turns = 0; turns < 100; ++turns)
    if (const auto next_s = older.work())
      world.clock->sleep_s(std::max(0.0, *next_s - world.clock->monotonic_s()));
  CHECK(world.place().store->list().front() == 40);
  CHECK(old_care.count(EventKind::upload_failed) == 1);
  CHECK_THAT(old_care.note(EventKind::upload_failed),
             Catch::Contains("attempt 5 of this run has begun in s3://b/runs/a; this writer has attempt 4"));
}

TEST_CASE("saves under way are not removed, those of dead attempts are") {
  const World world = world_with_two_new();
  for (const uint64_t epoch : {3, 4}) {
    ckpt::StateInfo state = make_state(7, 50).info;
    state.epoch = epoch;
    ckpt::prepare_saving(*world.fs, kFolder, state);
  }
  tended(world);
  CHECK(world.fs->list(kFolder + "/.saving") == std::vector<std::string>{"step-00000050.e4"});
}

TEST_CASE("a scrub keeps to its rate until the run ends") {
  const World world = world_with_two_new();
  const double begin_s = world.clock->monotonic_s();
  Care care;
  CareOptions options = options_of(world, care);
  options.read_bytes_per_s = 1000;
  tend(world, options);
  CHECK(world.clock->monotonic_s() - begin_s > 10);
}

TEST_CASE(
    "the thread: a call that hangs keeps neither a pause nor the end; it does nothing more when it returns") {
  const bool at_the_end = GENERATE(false, true);
  const World world = world_with_two_new();
  Gate gate;
  std::atomic<int> calls = 0;
  std::atomic<bool> hangs = false;
  ckpt::CountingFileSystem files(*world.fs, {.asked = [&] {
    ++calls;
    if (hangs) gate.pass();
  }});
  const auto life = std::make_shared<int>();
  CareOptions options{.directory = kFolder, .marks_path = kMarks};
  options.must_hold = [mine = life] { REQUIRE(mine); };
  // Patience for the thread that hangs, which the one that does not must keep also on a busy machine: it is
  // waited for once where it counts, and for longer than such a machine stops a thread.
  std::optional<CareThread> thread(std::in_place, files, real_clock(), options, at_the_end ? 2 : 15);
  hangs = true;
  thread->begin(4, INT64_MAX);
  gate.await_visitor();
  hangs = false;
  const std::string says = "the file system of /run/ckpt has not answered for";
  if (at_the_end) {
    CHECK_THAT(thread->finish(0.1, [] { return false; }).text(), Catch::Contains(says));
  } else {
    thread->pause();
    const auto reports = thread->take_reports();
    REQUIRE(reports.size() == 1);
    CHECK(reports[0].kind == EventKind::care_failed);
    CHECK_THAT(reports[0].note, Catch::Contains(says));
    // Another thread goes on with the next attempt.
    thread->begin(5, INT64_MAX);
    CHECK(thread->finish(600, [] { return false; }).is_none());
    CHECK(thread->progress().verified_step == 40);
  }
  const size_t effects = world.fs->effects().size();
  thread.reset();
  const int before = calls;
  gate.open();
  REQUIRE(eventually(60, [&] { return life.use_count() == 2; }));  // `options` and this test
  CHECK(calls == before);
  CHECK(world.fs->effects().size() == effects);
}
