// Goal: saving while training goes on: a state that changes while it is copied is never saved; a slow disk
// holds nothing up, and gets whole checkpoints as long as it gets on; a failing one fails saves only; one that
// hangs costs the end of a run its limit once. Whole runs: saver_runs_test.cpp.
// Method: the decision exhaustively; the Saver alone with a state in plain arrays, a source that blocks
// until the test lets it go on, a file system that blocks or fails, and a clock that the test winds.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "test/runtime/train/saver_rig.h"
#include "test/support/child.h"

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
          // The only slot is overwritten when nothing is written from it any more.
          LeavingSave only = leaving;
          only.slots = 1;
          CHECK_FALSE(copies_over_newest(writes, only));
          CHECK(decide(due, {.lost = lost}, only) == due);
          CHECK(decide(due, writes, only) == (due.any() && !holds ? kMemory : nothing));
        }
}

TEST_CASE("copies and checkpoints of a state that changes every step", "[saver]") {
  Rig rig;
  for (int64_t step = 1; step <= 20; ++step) {
    rig.step(step, {.memory = true, .directory = step % 5 == 0});
    if (step % 5 == 0) CHECK(rig.finish());
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
  Rig rig({.spec = "{\"train\": \"" + std::string(300 << 10, 'x') + "\"}"});
  rig.step(1, {.memory = true, .directory = true});
  rig.saver->fence();
  rig.saver->write_now(rig.info(2), 600);
  CHECK(rig.events == std::vector<std::string>{"checkpoint 1", "checkpoint 2"});
  CHECK(rig.copies() == std::vector<int64_t>{1});
  CHECK(ckpt::open_latest(rig.fs, "/ckpt", -1, nullptr)->state().resolved_spec_json == rig.spec);
}

TEST_CASE("without memory a save is written before training goes on", "[saver]") {
  Rig rig({.with_memory = false});
  for (int64_t step = 1; step <= 4; ++step) rig.step(step, {.memory = true, .directory = step % 2 == 0});
  CHECK(rig.saved() == std::vector<int64_t>{4, 2});
  CHECK((rig.is_whole(4) && rig.is_whole(2)));
  CHECK(rig.copies().empty());
}

TEST_CASE("a state that changes while it is copied is not saved, and the older copy stays", "[saver]") {
  Gate gate;
  Rig rig;
  rig.step(1, kBoth);
  CHECK(rig.finish());
  rig.source.gate = &gate;
  rig.step(2, kBoth);
  gate.await_visitor();
  rig.change(3);  // without the fence
  gate.open();
  rig.saver->fence();
  CHECK(rig.finish());
  CHECK(rig.copies() == std::vector<int64_t>{1});
  CHECK((rig.saver->newest_copy() == 1 && rig.saver->newest_staged() == 2));
  CHECK(rig.saved() == std::vector<int64_t>{1});
  CHECK(rig.events == std::vector<std::string>{"checkpoint 1", "save_failed 2", "save_failed 2"});
  CHECK_THAT(rig.reasons[1], Catch::Contains("the state changed while it was copied"));
}

TEST_CASE("the fence waits for the copy", "[saver]") {
  Gate gate;
  Rig rig;
  rig.source.gate = &gate;
  rig.step(1, kMemory);
  gate.await_visitor();
  std::atomic<bool> passed = false;
  bool passed_early = false;
  std::thread opens([&] {
    // A fence that does not wait has this time to show it.
    passed_early = happens_within(0.1, [&] { return passed.load(); });
    gate.open();
  });
  rig.saver->fence();
  passed = true;
  opens.join();
  CHECK_FALSE(passed_early);
  CHECK(rig.copies() == std::vector<int64_t>{1});
}

TEST_CASE("a slow disk holds nothing up; newer saves give way to the one that is written", "[saver]") {
  Gate gate;
  Rig rig;
  rig.fs.gate = &gate;
  rig.step(1, kBoth);
  gate.await_visitor();
  for (int64_t step = 2; step <= 9; ++step) rig.step(step, kBoth);
  rig.saver->fence();
  // Step 1 is being written from one slot; the newest step is in the other one.
  CHECK(rig.copies() == std::vector<int64_t>{9, 1});
  CHECK(rig.saved().empty());
  CHECK(rig.has_event("save_left_out 9"));
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
  Gate disk, copy;
  Rig rig;
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
  CHECK(rig.finish());
  CHECK(rig.is_whole(1));  // what was written from its slot meanwhile
  // Then each copy has an older one again.
  rig.step(11, kMemory);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{11, 10});
}

TEST_CASE("a copy that is void keeps the newest copy while others write theirs", "[saver]") {
  Gate gate;
  Rig rig;
  rig.step(1, kMemory);
  rig.saver->fence();
  rig.source.gate = &gate;
  rig.step(2, kBoth);
  gate.await_visitor();
  rig.change(3);  // without the fence
  gate.open();
  rig.source.gate = nullptr;
  rig.saver->fence();
  CHECK(rig.finish());
  CHECK(rig.saver->under_way().lost);
  const SavesUnderWay others{.writing = true, .holds = true, .lost = true};
  rig.saver->stage(rig.info(3), kMemory, others);
  rig.saver->fence();
  CHECK(rig.saver->stage(rig.info(4), kMemory, others) == SaveTargets{});
  CHECK(rig.copies() == std::vector<int64_t>{3, 1});
  rig.step(5, kBoth);
  CHECK(rig.finish());
  CHECK_FALSE(rig.saver->under_way().lost);
}

TEST_CASE("a slow write that gets on is never given up", "[saver]") {
  Turnstile turnstile;
  Rig rig({.write_timeout_s = 3});
  rig.fs.turnstile = &turnstile;
  rig.step(1, kBoth);
  const double began_s = rig.clock.monotonic_s();
  // The shard is made, written and synced: 2 s each.
  for (int call = 1; call <= 3; ++call) {
    turnstile.await_visitor(call);
    rig.clock.pass(2);
    CHECK(rig.saver->under_way().holds);
    turnstile.let(1);
  }
  CHECK(rig.clock.monotonic_s() - began_s > 3);
  CHECK(rig.finish());
  CHECK(rig.events == std::vector<std::string>{"checkpoint 1"});
  CHECK(rig.is_whole(1));
}

TEST_CASE("a write behind the training keeps to its rate, and counts as one that gets on", "[saver]") {
  Turnstile turnstile;
  Rig rig({.write_timeout_s = 300, .write_bytes_per_s = 2});
  rig.fs.turnstile = &turnstile;
  rig.clock.pass_with_each_look(50);
  const double began_s = rig.clock.monotonic_s();
  rig.step(1, kBoth);
  turnstile.let(2);  // the shard is made and written
  turnstile.await_visitor(3);
  CHECK(rig.saver->under_way().holds);
  rig.clock.pass_with_each_look(0);
  CHECK(rig.clock.monotonic_s() - began_s > 600 / 2);  // it has more than 600 bytes
  turnstile.let(1);
  CHECK(rig.finish());
  CHECK(rig.is_whole(1));
}

TEST_CASE("a write that a stop waits for is not slowed down", "[saver]") {
  Rig rig({.write_bytes_per_s = 1e-3});
  rig.step(1, kBoth);
  CHECK(rig.finish());  // the clock stands still: without haste it would not end
  CHECK(rig.is_whole(1));
}

TEST_CASE("a write that hangs fails and gives its slot free", "[saver]") {
  Gate gate;
  Rig rig({.write_timeout_s = 3});
  rig.fs.gate = &gate;
  rig.step(1, kBoth);
  gate.await_visitor();
  rig.clock.pass(2.9);
  CHECK(rig.saver->under_way().holds);
  rig.clock.pass(0.2);
  for (int64_t step = 2; step <= 4; ++step) rig.step(step, kBoth);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{4, 3});
  REQUIRE(rig.has_event("save_failed 1"));
  CHECK(rig.reasons[0] ==
        "rank 0 could not write its shard: nothing was written for 3.1 s "
        "(fault_tolerance.save_timeout_seconds)");
  gate.open();
  while (rig.saver->under_way().writing) std::this_thread::yield();
  CHECK(rig.saved().empty());
  CHECK(rig.events.size() == 4);  // the save failed once; three gave way
}

TEST_CASE("a write that hangs costs the end its limit once, and the last save follows", "[saver]") {
  Gate gate;
  Rig rig({.let_go_s = 0});
  rig.fs.gate = &gate;
  rig.step(1, kBoth);
  gate.await_visitor();
  rig.fs.gate = nullptr;  // only this write hangs
  rig.saver->fence();
  rig.change(2);
  rig.clock.pass_with_each_look(0.1);
  double began_s = rig.clock.monotonic_s();
  const int64_t number = rig.saver->write_now(rig.info(2), 2);
  CHECK(rig.clock.monotonic_s() - began_s < 4);
  CHECK(rig.controls[0]->await_saved(number).ok);
  CHECK(rig.events == std::vector<std::string>{"save_failed 1", "checkpoint 2"});
  CHECK(rig.reasons[0] ==
        "rank 0 could not write its shard: not written 2.0 s after the last step "
        "(checkpoint.exit_timeout_seconds)");
  began_s = rig.clock.monotonic_s();
  CHECK_FALSE(rig.saver->finish(600));
  CHECK(rig.clock.monotonic_s() - began_s < 2);  // it is not waited for again
  rig.saver.reset();                             // nor here
  CHECK(rig.life.use_count() == 2);              // the thread still hangs
  rig.controls.clear();                          // it must not be used any more
  gate.open();
  REQUIRE(eventually(600, [&] { return rig.life.use_count() == 1; }));
  CHECK(rig.saved() == std::vector<int64_t>{2});
  CHECK(rig.is_whole(2));
}

TEST_CASE("at the end a write that gets on is waited for, and shows it; one that does not is given up",
          "[saver]") {
  const bool hangs = GENERATE(false, true);
  Turnstile turnstile;
  Rig rig({.write_timeout_s = 3});
  rig.fs.turnstile = &turnstile;
  rig.step(1, kBoth);
  turnstile.await_visitor(1);
  if (hangs) rig.clock.pass_with_each_look(0.1);
  std::thread disk([&] {
    for (int call = 1; call <= 3 && !hangs; ++call) {
      turnstile.await_visitor(call);
      rig.clock.pass(2);
      turnstile.let(1);
    }
  });
  CHECK(rig.saver->finish(600) == !hangs);
  disk.join();
  CHECK(rig.shown_done_only_grows);
  // A moment before the supervisor would count the run as hung.
  if (hangs)
    CHECK_THAT(rig.newest_reason(), Catch::Contains("nothing was written for 2.") &&
                                        Catch::Contains("(fault_tolerance.save_timeout_seconds)"));
  else
    CHECK(rig.is_whole(1));
  turnstile.let(3);
}

TEST_CASE("with one slot each copy takes the place of the one before, except while that is being written",
          "[saver]") {
  Gate disk, copy;
  Rig rig({.slots = 1});
  for (int64_t step = 1; step <= 3; ++step) {
    rig.step(step, kMemory);
    rig.saver->fence();
    CHECK(rig.copies() == std::vector<int64_t>{step});
    CHECK((rig.saver->newest_copy() == step && rig.saver->newest_staged() == step));
  }
  rig.fs.gate = &disk;
  rig.step(4, kBoth);
  disk.await_visitor();
  for (int64_t step = 5; step <= 7; ++step) rig.step(step, kBoth);
  rig.saver->fence();
  CHECK(rig.copies() == std::vector<int64_t>{4});
  CHECK(rig.saver->newest_staged() == 4);
  CHECK(rig.has_event("save_left_out 7"));
  disk.open();
  CHECK(rig.finish());
  CHECK(rig.is_whole(4));
  // A copy that is being made is all there is.
  rig.source.gate = &copy;
  rig.step(8, kMemory);
  copy.await_visitor();
  CHECK(rig.copies().empty());
  CHECK(rig.saver->newest_copy() == -1);
  rig.change(9);  // without the fence
  copy.open();
  rig.source.gate = nullptr;
  rig.saver->fence();
  CHECK(rig.finish());
  CHECK((rig.copies().empty() && rig.saver->newest_copy() == -1));
  rig.step(10, kAll);
  CHECK(rig.finish());
  CHECK(rig.copies() == std::vector<int64_t>{10});
  CHECK(rig.copies_of_partner() == std::vector<int64_t>{10});
  CHECK(rig.saved() == std::vector<int64_t>{10, 4});
}

TEST_CASE("each effect on the disk fails once: the older checkpoint remains and the next save succeeds",
          "[saver]") {
  for (const Fault fault : {Fault::io_error_once, Fault::no_space_from_here, Fault::io_error_from_here})
    for (const SaveTargets& due : {kBoth, kDirectory}) {
      uint64_t effect = 0;
      for (bool failed = true; failed; ++effect) {
        INFO("effect " << effect << ", fault " << int(fault));
        Rig rig({.with_memory = due.memory});
        rig.step(1, due);
        CHECK(rig.finish());
        const size_t before = rig.fs.below.effects().size();
        rig.fs.below.fail_at(effect, fault);
        rig.step(2, due);
        CHECK(rig.finish());
        failed = rig.fs.below.effects().size() - before > effect;
        rig.fs.below.repair();
        CHECK(rig.is_whole(1));
        CHECK(rig.has_event("checkpoint 2") != rig.has_event("save_failed 2"));
        if (rig.has_event("checkpoint 2")) CHECK(rig.is_whole(2));
        rig.step(3, due);
        CHECK(rig.finish());
        REQUIRE(rig.has_event("checkpoint 3"));
        CHECK(rig.is_whole(3));
      }
      CHECK(effect > 10);
    }
}

TEST_CASE("each call of the file system fails once, or three times, also one that only looks", "[saver]") {
  for (const int64_t times : {1, 3})
    for (const SaveTargets& due : {kBoth, kDirectory}) {
      int failed = 0;
      for (int64_t n = 0;; ++n) {
        INFO("call " << n << " fails, " << times << " times");
        Rig rig({.with_memory = due.memory});
        rig.step(1, due);
        CHECK(rig.finish());
        rig.fs.calls = 0;
        rig.fs.fails_from = n;
        rig.fs.fails_before = n + times;
        rig.step(2, due);
        CHECK(rig.finish());
        const bool is_beyond = rig.fs.calls <= n;
        rig.fs.fails_before = 0;
        REQUIRE(rig.is_whole(1));
        REQUIRE(rig.has_event("checkpoint 2") != rig.has_event("save_failed 2"));
        if (rig.has_event("checkpoint 2")) REQUIRE(rig.is_whole(2));
        failed += rig.has_event("save_failed 2");
        rig.step(3, due);
        CHECK(rig.finish());
        REQUIRE(rig.has_event("checkpoint 3"));
        REQUIRE(rig.is_whole(3));
        if (is_beyond) break;
      }
      CHECK(failed > 10);
    }
}

TEST_CASE("a jump of the system's clock changes nothing of a save", "[saver]") {
  for (const double jump_s : {-1e9, 1e9}) {
    Turnstile turnstile;
    Rig rig({.write_timeout_s = 3});
    rig.fs.turnstile = &turnstile;
    rig.step(1, kAll);
    for (int call = 1; call <= 3; ++call) {
      turnstile.await_visitor(call);
      rig.clock.jump(jump_s);
      CHECK(rig.saver->under_way().holds);
      turnstile.let(1);
    }
    CHECK(rig.finish());
    CHECK(rig.events == std::vector<std::string>{"checkpoint 1"});
  }
}

TEST_CASE("the last save comes after the writes under way", "[saver]") {
  Rig rig;
  rig.step(1, kBoth);
  rig.saver->fence();
  rig.change(2);
  const int64_t number = rig.saver->write_now(rig.info(2), 600);
  CHECK(rig.controls[0]->await_saved(number).ok);
  CHECK(rig.saved() == std::vector<int64_t>{2, 1});
  CHECK((rig.is_whole(1) && rig.is_whole(2)));
}
