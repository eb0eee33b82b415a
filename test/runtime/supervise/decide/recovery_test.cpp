// Goal: each rule of recovery: which nodes, which width, which checkpoint comes next, what costs a restart,
// and what ends a run. Method: one short history a rule, on two to four nodes. All short histories are in
// recovery_history_test.
#include <catch2/catch.hpp>

#include "test/runtime/supervise/decide/recovery_run.h"

using namespace trainctl;
using namespace trainctl::test;

TEST_CASE("a rank that dies costs a restart, and the next epoch has the same nodes") {
  auto o = recovery_options(2, {"a", "b", "c"});
  o.max_restarts = 2;
  o.quarantine.failures = 0;
  Run run(o);
  CHECK(run.start.nodes == Names{"a", "b"});
  for (int i = 1; i <= 2; ++i) {
    run.recovery.progressed(10 * i);
    run.recovery.saved(10 * i);
    run.fail(ErrorCode::kWorker);
    run.found(10 * i);
    run.go();
    CHECK(run.start.nodes == Names{"a", "b"});
    CHECK(run.start.step == 10 * i);
    CHECK(run.start.why == "it broke; restart 1 of 2");  // progress begins the count anew
    CHECK(run.recovery.restarts() == i);
  }
  run.fail(ErrorCode::kWorker, 1);
  run.found(20);
  run.go();
  CHECK(run.start.why == "it broke; restart 2 of 2");
  run.fail(ErrorCode::kWorker, 2);
  CHECK(run.stopped().exit_code == 10);
  CHECK(run.stopped().why == "it broke");
}

TEST_CASE("a lost node costs no restart: a spare takes its place, and it returns as the last spare") {
  auto o = recovery_options(2, {"a", "b", "c"});
  o.max_restarts = 0;
  Run run(o);
  run.recovery.progressed(5);
  run.lose("a");
  REQUIRE(std::holds_alternative<FindCheckpoint>(run.next()));
  run.recovery.no_checkpoint(0);  // it was never saved
  run.go();
  CHECK(run.start.nodes == Names{"c", "b"});
  CHECK(!run.start.step);
  CHECK(run.start.why == "it broke; with c in place of a");
  run.recovery.node_ready("a", 2, 1);
  run.recovery.progressed(6);
  run.recovery.saved(6);
  run.lose("b");
  run.found(6);
  run.go();
  CHECK(run.start.nodes == Names{"c", "a"});
  CHECK(run.recovery.restarts() == 0);
}

TEST_CASE("without a spare the largest width that fits goes on, and it grows back when a node has settled") {
  Run run(recovery_options(4, {"a", "b", "c", "d"}));
  run.recovery.progressed(5);
  run.recovery.saved(5);
  run.lose("b");
  run.found(5);
  run.go();
  CHECK(run.start.nodes == Names{"a", "c", "d"});
  CHECK(run.start.width.data == 3);
  CHECK(run.start.why == "it broke; without b; data-parallel width 4 → 3");
  run.recovery.node_ready("b", 2, 10);
  CHECK(run.recovery.regroup(100) == Regroup::none);  // no step yet
  run.recovery.progressed(6);
  CHECK(run.recovery.regroup(14) == Regroup::none);  // not settled yet
  REQUIRE(run.recovery.regroup(15.5) == Regroup::wider);
  run.recovery.saved(6);
  run.recovery.attempt_ended({.how = AttemptEnd::regrouped}, 16);
  run.found(6);
  run.go();
  CHECK(run.start.nodes == Names{"a", "c", "d", "b"});
  CHECK(run.start.width.data == 4);
  CHECK(run.start.why == "with b; data-parallel width 3 → 4");
}

TEST_CASE("a node that is being started is awaited: long at first, briefly where a smaller width fits") {
  Recovery r(recovery_options(2, {"a", "b"}), 0);
  r.node_ready("a", 2, 1);
  REQUIRE(std::holds_alternative<Wait>(r.next(1)));
  CHECK(std::get<Wait>(r.next(1)).until_s == 60);
  CHECK(std::get<Wait>(r.next(1)).why == "waiting for 1 node that is being started");
  Recovery::Options alone = recovery_options(1, {"a"});
  alone.one_machine = true;
  CHECK(std::get<Wait>(Recovery(alone, 0).next(1)).why == "waiting for this machine's agent to start");
  const Decision d = r.next(60);
  REQUIRE(std::holds_alternative<StartAttempt>(d));
  CHECK(std::get<StartAttempt>(d).width.data == 1);
  r.node_ready("b", 2, 61);
  r.attempt_started(std::get<StartAttempt>(r.next(61)), 61);
  r.progressed(1);
  r.saved(1);
  r.node_lost("b", "its agent ended", 70);
  r.attempt_ended(failure(ErrorCode::kWorker), 70);
  r.node_coming("b", 70);
  r.checkpoint_found(1);
  REQUIRE(std::holds_alternative<Wait>(r.next(70)));
  CHECK(std::get<Wait>(r.next(70)).until_s == 71);
  CHECK(std::get<StartAttempt>(r.next(71)).nodes == Names{"a"});
  r.node_ready("b", 2, 70.5);
  CHECK(std::get<StartAttempt>(r.next(70.5)).nodes == Names{"a", "b"});
}

TEST_CASE("too few nodes: wait up to the limit, requeue, or stop with 75") {
  for (const TooFew policy : {TooFew::wait, TooFew::requeue, TooFew::stop}) {
    auto o = recovery_options(2, {"a", "b"});
    o.widths.pop_back();  // nothing below two replicas
    o.too_few = policy;
    Run run(o);
    run.recovery.progressed(5);
    run.recovery.saved(5);
    run.now_s = 100;
    run.lose("b");
    run.found(5);
    const std::string why = "it broke; too few nodes: 1 node ready for 2 ranks, and the smallest width has 4";
    if (policy == TooFew::requeue) {
      REQUIRE(std::holds_alternative<RequeueJob>(run.next()));
      CHECK(std::get<RequeueJob>(run.next()).why == why);
      continue;
    }
    if (policy == TooFew::wait) {
      REQUIRE(std::holds_alternative<Wait>(run.next()));
      CHECK(std::get<Wait>(run.next()).until_s == 700);
      CHECK(std::get<Wait>(run.next()).why == why);
      run.now_s = 700;
    }
    CHECK(run.stopped().exit_code == 75);
    CHECK(run.stopped().why == (policy == TooFew::wait ? why + "; waited for 10m 0s" : why));
  }
}

TEST_CASE("each shortage of nodes is awaited for the whole limit") {
  auto o = recovery_options(1, {"a"});
  Run run(o);
  for (int i = 1; i <= 2; ++i) {
    run.recovery.progressed(i);
    run.recovery.saved(i);
    run.now_s = 500 * i;
    run.lose("a");
    run.found(i);
    REQUIRE(std::holds_alternative<Wait>(run.next()));
    CHECK(std::get<Wait>(run.next()).until_s == run.now_s + 600);
    run.recovery.node_ready("a", 2, run.now_s + 1);
    run.go();
  }
}

TEST_CASE("an attempt that has lost a node is not ended to become wider") {
  Run run(recovery_options(2, {"a", "b"}));
  run.recovery.progressed(1);
  run.recovery.saved(1);
  run.lose("b");
  run.found(1);
  run.go();
  run.recovery.progressed(2);
  run.recovery.node_ready("b", 2, 1);
  run.recovery.node_ready("c", 2, 1);
  CHECK(run.recovery.regroup(10) == Regroup::wider);
  run.recovery.node_lost("a", "silent", 10);
  CHECK(run.recovery.regroup(10) == Regroup::none);
}

TEST_CASE("a checkpoint that cannot be loaded gives way to an older one at no cost, down to a refusal") {
  for (const bool fixed : {false, true}) {
    auto o = recovery_options(1, {"a"});
    o.from_step = 30;
    o.step_fixed = fixed;
    o.max_restarts = 1;
    Run run(o);
    CHECK(run.start.step == 30);
    run.fail(ErrorCode::kCheckpoint);
    REQUIRE(std::holds_alternative<FindCheckpoint>(run.next()));
    CHECK(std::get<FindCheckpoint>(run.next()).damaged == 30);
    if (fixed) {
      CHECK(std::get<FindCheckpoint>(run.next()).at_most == -1);
      run.recovery.no_checkpoint(0);
      CHECK(run.stopped().exit_code == 7);
      CHECK(run.stopped().why == "it broke; it cannot be repaired, and the step was given");
      continue;
    }
    CHECK(std::get<FindCheckpoint>(run.next()).at_most == 29);
    run.found(20);
    run.go();
    CHECK(run.start.why == "checkpoint step 30 cannot be loaded (it broke)");
    run.fail(ErrorCode::kCheckpoint);
    REQUIRE(std::get<FindCheckpoint>(run.next()).at_most == 19);
    CHECK(std::get<FindCheckpoint>(run.next()).damaged == 20);
    run.recovery.no_checkpoint(0);
    CHECK(run.stopped().exit_code == 7);
    CHECK(run.stopped().why == "it broke; there is no older usable checkpoint");
    CHECK(run.recovery.restarts() == 0);
  }
}

TEST_CASE("a checkpoint that was repaired is loaded again, and repaired once only until the run gets on") {
  for (const bool fixed : {false, true}) {
    CAPTURE(fixed);
    auto o = recovery_options(1, {"a"});
    o.from_step = 30;
    o.step_fixed = fixed;
    Run run(o);
    run.fail(ErrorCode::kCheckpoint);
    REQUIRE(std::get<FindCheckpoint>(run.next()).damaged == 30);
    run.found(30);
    run.go();
    CHECK(run.start.step == 30);
    CHECK(run.recovery.restarts() == 0);
    run.fail(ErrorCode::kCheckpoint);
    if (fixed) {
      CHECK(run.stopped().exit_code == 7);
      continue;
    }
    CHECK_FALSE(std::get<FindCheckpoint>(run.next()).damaged);
    CHECK(std::get<FindCheckpoint>(run.next()).at_most == 29);
    run.found(20);
    run.go();
    run.recovery.saved(40);  // progress: a later save of step 20 may be damaged, too
    run.fail(ErrorCode::kCheckpoint);
    CHECK(std::get<FindCheckpoint>(run.next()).damaged == 20);
  }
}

TEST_CASE("a run that was saved never begins again from its start") {
  for (const int skipped : {0, 1})
    for (const std::string saved : {"", "now", "before"}) {
      auto options = recovery_options(1, {"a"});
      options.was_saved = saved == "before";
      Run run(options);
      run.recovery.progressed(5);
      if (saved == "now") run.recovery.saved(5);
      run.fail(ErrorCode::kWorker);
      run.recovery.no_checkpoint(skipped);
      if (!saved.empty() || skipped) {
        CHECK(run.stopped().exit_code == 7);
        CHECK(run.recovery.restarts() == 0);
        CHECK(run.stopped().why == (skipped
                                        ? "it broke; the run was saved, but none of its checkpoints is usable"
                                        : "it broke; the run was saved, but its checkpoints are gone"));
      } else {
        run.go();
        CHECK(!run.start.step);
        CHECK(run.recovery.restarts() == 1);
      }
    }
}

TEST_CASE("a lost node whose run finds no checkpoint leaves the count of restarts alone") {
  Run run(recovery_options(1, {"a", "b"}));
  run.recovery.progressed(5);
  run.recovery.saved(5);
  run.lose("a");
  run.recovery.no_checkpoint(0);
  CHECK(run.stopped().exit_code == 7);
  CHECK(run.recovery.restarts() == 0);
}

TEST_CASE("what a relaunch cannot heal ends the run, also where a node was lost meanwhile") {
  for (const bool lost : {false, true})
    for (const ErrorCode code :
         {ErrorCode::kData, ErrorCode::kDiverged, ErrorCode::kSpec, ErrorCode::kInternal}) {
      Run run(recovery_options(1, {"a", "b"}));
      if (lost) run.recovery.node_lost("a", "silent", 0);
      run.fail(code);
      CHECK(run.stopped().exit_code == exit_status(code));
    }
}

TEST_CASE("finished, stopped and aborted attempts end the run; a stop while none runs does, too") {
  for (const auto& [how, code] :
       {std::pair(AttemptEnd::finished, 0), {AttemptEnd::stopped, 75}, {AttemptEnd::aborted, 130}}) {
    Run run(recovery_options(1, {"a"}));
    run.recovery.attempt_ended({.how = how}, 1);
    CHECK(run.stopped().exit_code == code);
  }
  for (const auto& [level, code] : {std::pair(StopLevel::save_and_stop, 75), {StopLevel::now, 130}}) {
    Recovery r(recovery_options(1, {"a"}), 0);
    r.stop(level);
    CHECK(std::get<StopRun>(r.next(0)).exit_code == code);
  }
  // An attempt that fails while it is being stopped is a failure.
  Run run(recovery_options(1, {"a"}));
  run.recovery.stop(StopLevel::save_and_stop);
  run.fail(ErrorCode::kWorker);
  CHECK(run.stopped().exit_code == 10);
}

TEST_CASE("a node on which failures repeat is put out, and listed once the run went on without it") {
  auto o = recovery_options(1, {"a", "b"});
  o.from_step = 1;
  Run run(o);
  for (int i = 1; i <= 3; ++i) {
    run.now_s = i;
    run.recovery.progressed(10 * i);
    run.fail(ErrorCode::kWorker, 1, "a");
    run.found(1);
    run.go();
    CHECK(run.start.nodes == (i < 3 ? Names{"a"} : Names{"b"}));
  }
  CHECK(run.recovery.take_quarantined().empty());
  run.recovery.progressed(31);
  CHECK(run.recovery.take_quarantined().at(0).name == "a");
  CHECK(run.recovery.take_quarantined().empty());
  // The last node that carries the run stays, whatever fails on it.
  for (int i = 4; i <= 8; ++i) {
    run.recovery.progressed(10 * i);
    run.fail(ErrorCode::kWorker, 0, "b");
    run.found(1);
    run.go();
    CHECK(run.start.nodes == Names{"b"});
  }
}

TEST_CASE("evidence against a node counts as a failure there, and the run goes on without it") {
  Run run(recovery_options(1, {"a", "b"}));
  run.recovery.progressed(5);
  for (int i = 1; i <= 3; ++i) {
    CHECK(run.recovery.regroup(100) == Regroup::none);
    run.recovery.suspect("a", "it held other bits", i);
  }
  CHECK(run.recovery.pool()[0].quarantined);
  CHECK(run.recovery.regroup(100) == Regroup::without_quarantined);
}

TEST_CASE("a rank that computes wrongly: its node is out, and the run begins from what was verified") {
  for (const bool has_state : {false, true}) {
    Run run(recovery_options(2, {"a", "b", "c"}));
    run.recovery.progressed(25);
    run.recovery.saved(20);
    run.recovery.go_back(16, true, "a rank computed wrongly");
    run.fail(ErrorCode::kDevice, 3, "b");
    const Decision decision = run.next();
    REQUIRE(std::holds_alternative<FindCheckpoint>(decision));
    CHECK(std::get<FindCheckpoint>(decision).at_most == 16);
    has_state ? run.recovery.checkpoint_found(10) : run.recovery.no_checkpoint(0);
    run.go();
    CHECK(run.start.nodes == Names{"a", "c"});
    CHECK(run.start.step == (has_state ? std::optional<int64_t>(10) : std::nullopt));
  }
}

TEST_CASE("of two reasons to go back the earlier state counts, and a later one where none is so early") {
  for (const bool is_loss_first : {false, true}) {
    Run run(recovery_options(2, {"a", "b", "c"}));
    run.recovery.progressed(45);
    run.recovery.saved(44);
    if (is_loss_first) run.recovery.go_back(40, false, "the loss rose");
    run.recovery.go_back(16, false, "a rank computed wrongly");
    run.recovery.or_back_to(41);
    if (!is_loss_first) run.recovery.go_back(40, false, "the loss rose");
    run.fail(ErrorCode::kDevice, 3, "b");
    for (const int64_t limit : {16, 40, 41}) {
      CHECK(std::get<FindCheckpoint>(run.next()).at_most == limit);
      CHECK(!run.recovery.take_not_gone_back());
      run.recovery.no_checkpoint(0);
      CHECK(run.recovery.take_not_gone_back() == limit);
    }
    CHECK(!std::get<FindCheckpoint>(run.next()).at_most);
    run.recovery.checkpoint_found(44);
    run.go();
    run.recovery.progressed(46);
    run.fail(ErrorCode::kWorker);
    CHECK(!std::get<FindCheckpoint>(run.next()).at_most);
  }
}

TEST_CASE("a failure of which no device is known to be the cause counts against no node") {
  for (const bool is_undecided : {false, true}) {
    auto o = recovery_options(2, {"a", "b", "c"});
    o.quarantine.failures = 3;
    Run run(o);
    for (int i = 1; i <= 4; ++i) {
      run.recovery.progressed(10 * i);
      AttemptEnd end = failure(ErrorCode::kHardware, 0, "a");
      end.is_undecided = is_undecided;
      run.recovery.attempt_ended(end, run.now_s);
      run.recovery.no_checkpoint(0);
      run.go();
    }
    CHECK((run.start.nodes == Names{"a", "b"}) == is_undecided);
    CHECK(run.recovery.restarts() == 4);
  }
}

TEST_CASE("losses at one time count once against a node") {
  auto o = recovery_options(1, {"a", "b"});
  o.too_few = TooFew::stop;
  Run run(o);
  for (const double now_s : {10.0, 11.0, 12.0, 14.9, 20.0}) {
    run.recovery.node_lost("b", "its connection is gone", now_s);
    run.recovery.node_ready("b", 2, now_s);
  }
  CHECK(!run.recovery.pool()[1].quarantined);
  run.recovery.node_lost("b", "its connection is gone", 30);
  CHECK(run.recovery.pool()[1].quarantined);
}

TEST_CASE("a node that this run put out is used again where the run fits in no other way") {
  for (const bool by_list : {false, true}) {
    auto o = recovery_options(1, {"a", "b"});
    o.from_step = 1;
    Run run(o);
    for (int i = 1; i <= 3; ++i) {
      run.recovery.progressed(10 * i);
      run.fail(ErrorCode::kWorker, 1, "a");
      run.found(1);
      run.go();
    }
    REQUIRE(run.start.nodes == Names{"b"});
    if (by_list) run.recovery.set_quarantined("a", true);
    run.lose("b");
    run.found(1);
    if (by_list) {
      CHECK(std::holds_alternative<Wait>(run.next()));
    } else {
      run.go();
      CHECK(run.start.nodes == Names{"a"});
      run.recovery.progressed(40);
      CHECK(run.recovery.take_quarantined().empty());
    }
  }
}

TEST_CASE("a quarantined node in use is left at a checkpoint, if the others carry the width") {
  Run run(recovery_options(2, {"a", "b", "c"}));
  run.recovery.progressed(1);
  run.recovery.set_quarantined("b", true);
  CHECK(run.recovery.regroup(100) == Regroup::without_quarantined);
  run.recovery.set_quarantined("c", true);
  CHECK(run.recovery.regroup(100) == Regroup::none);
  run.recovery.set_quarantined("c", false);
  run.recovery.saved(1);
  run.recovery.attempt_ended({.how = AttemptEnd::regrouped}, 100);
  run.found(1);
  run.go();
  CHECK(run.start.nodes == Names{"a", "c"});
}

TEST_CASE("a node that this run put out under an earlier supervisor is used again where nothing else fits") {
  const bool by_this_run = GENERATE(false, true);
  auto o = recovery_options(1, {"a", "b"});
  o.from_step = 1;
  Run run(o);
  run.recovery.set_quarantined("a", true, by_this_run);
  run.lose("a");
  run.recovery.node_ready("a", 2, 0);
  run.found(1);
  run.go();
  REQUIRE(run.start.nodes == Names{"b"});
  run.lose("b");
  run.found(1);
  if (by_this_run) run.go();
  CHECK((by_this_run ? run.start.nodes == Names{"a"} : std::holds_alternative<Wait>(run.next())));
}
