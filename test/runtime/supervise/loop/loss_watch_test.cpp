// Goal: a decision about the loss is durable before anything follows from it, is made once over all
// restarts and whatever moment its supervisor dies at, and what cannot be decided is said; a limit ends the
// run. Method: the records of a run in a temporary folder, with steps by hand; each supervisor is a new
// object on the same folder, cut off where it hurts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "runtime/run/record/events.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/loop/loss_watch.h"
#include "test/runtime/supervise/loop/supervised_stage.h"
#include "test/support/child.h"

using namespace trainctl;
using test::SupervisedStage;

namespace {

SupervisePlan watched_plan(LossPolicy policy = LossPolicy::skip) {
  SupervisePlan plan = test::plan_of_two_nodes();
  plan.job.job.batch.global_sequences = 8;
  LossMonitorSpec& monitor = plan.job.job.observability.loss_monitor;
  monitor.policy = policy;
  monitor.window = 16;
  monitor.diverged_steps = 6;
  return plan;
}

/// As a supervisor that begins.
LossWatch opened(SupervisedStage& stage, const Remedies& remedies = {}) {
  LossWatch watch(*stage.run, remedies);
  watch.replay();
  return watch;
}

/// Steps [first, last] with the loss 3, but 9 in `bad`; they lie `offset` samples later in the data.
void record_steps(SupervisedStage& stage, LossWatch& watch, int64_t first, int64_t last,
                  const std::vector<int64_t>& bad = {}, int64_t offset = 0) {
  for (int64_t step = first; step <= last; ++step) {
    StepLine line;
    line.step = step;
    line.sample = (step - 1) * 8 + offset;
    line.loss = std::find(bad.begin(), bad.end(), step) == bad.end() ? 3 : 9;
    line.grad_norm = 1;
    stage.run->log.step({.line = line});
    watch.step(line);
  }
  stage.run->log.await_files();
}

void record_start(SupervisedStage& stage, int64_t from) {
  stage.run->log.event(StartEvent{.epoch = 1, .from_step = from});
  stage.run->log.await_files();
}
void record_checkpoint(SupervisedStage& stage, int64_t step) {
  stage.run->log.event(CheckpointEvent{.step = step});
  stage.run->log.await_files();
}

/// What supersede_metrics does for an attempt that begins after `step`.
void forget_steps_beyond(SupervisedStage& stage, int64_t step) {
  supersede_metrics(real_file_system(), stage.directory.metrics(), step, stage.directory.file("aside"));
  stage.run->log.reopen_metrics();
}

LossRecord recorded(const SupervisedStage& stage) {
  return read_loss_record(real_file_system(), stage.directory);
}

Recovery::Options two_nodes() {
  return {.widths = {{.data = 2, .ranks = 4}, {.data = 1, .ranks = 2}},
          .tensor = 2,
          .nodes = {"a", "b"},
          .max_restarts = 100};
}

/// A run whose nodes are ready and whose first attempt runs.
struct GoingBack {
  Recovery recovery{two_nodes(), 0};
  StartAttempt start;

  GoingBack() {
    for (const char* node : {"a", "b"}) recovery.node_ready(node, 2, 0);
    go();
  }
  Decision next() { return recovery.next(0); }
  void go() {
    const Decision decision = next();
    REQUIRE(std::holds_alternative<StartAttempt>(decision));
    start = std::get<StartAttempt>(decision);
    recovery.attempt_started(start, 0);
  }
  void fail() {
    recovery.attempt_ended({.how = AttemptEnd::failed, .code = ErrorCode::kWorker, .cause = "it broke"}, 0);
  }
};

}  // namespace

TEST_CASE("to warn is an event, a line and the status, once", "[loss]") {
  SupervisedStage stage(watched_plan(LossPolicy::warn));
  record_start(stage, 0);
  LossWatch watch = opened(stage);
  record_steps(stage, watch, 1, 40, {30, 31});
  const auto events = stage.events("loss_spike");
  REQUIRE(events.size() == 1);
  CHECK(events[0]["first"] == 30);
  CHECK(events[0]["last"] == 31);
  CHECK(events[0]["sample"] == 29 * 8);
  CHECK(events[0]["sample_end"] == 31 * 8);
  CHECK(!watch.pending());
  CHECK(stage.run->log.status().loss_trouble.find("steps 30 to 31") != std::string::npos);
  CHECK(stage.printed("the loss rose to 9 in steps 30 to 31") == 1);
  // Another supervisor, and another attempt that computes the steps again, know it.
  LossWatch next = opened(stage);
  forget_steps_beyond(stage, 20);
  next.begin(20, true);
  record_steps(stage, next, 21, 40, {30, 31});
  CHECK(stage.events("loss_spike").size() == 1);
}

TEST_CASE("a run that goes back at its start says how far", "[loss]") {
  const LossWatch::GoBack back{.at_most = 29, .why = "the loss rose: back to step 29 or before"};
  CHECK(back.text(50) == back.why + "; the run was at step 50: at least 21 steps again");
  CHECK(back.text(29) == back.why);
  CHECK(back.text(0) == back.why);
}

TEST_CASE("a decision is recorded before the run goes back, and applied with the next attempt", "[loss]") {
  SupervisedStage stage(watched_plan());
  record_start(stage, 0);
  record_checkpoint(stage, 20);
  std::filesystem::create_directories(stage.directory.file("ckpt/step-00000020"));
  test::write_file(stage.directory.file("ckpt/step-00000020/COMMIT"), "x");
  LossWatch watch = opened(stage);
  record_steps(stage, watch, 1, 35, {30, 31, 34});  // the last is of steps that are given up
  const auto back = watch.pending();
  REQUIRE(back);
  CHECK(back->at_most == 29);
  CHECK(!back->may_begin_again);
  REQUIRE(recorded(stage).decisions.size() == 1);
  CHECK(watch.remedies() == Remedies{.skipped = {{29 * 8, 16}}});
  CHECK(stage.events("loss_rollback").size() == 1);
  CHECK(stage.run->log.status().skipped_samples == 16);

  // The supervisor is killed now: the next one finds it not applied, and decides nothing anew.
  LossWatch next = opened(stage);
  REQUIRE(next.pending());
  CHECK(next.pending()->at_most == 29);
  CHECK(recorded(stage).decisions.size() == 1);

  forget_steps_beyond(stage, 20);
  next.begin(20, true);
  CHECK(!next.pending());
  record_steps(stage, next, 21, 29);
  record_steps(stage, next, 30, 33, {32}, 16);  // what was step 34 is step 32 now
  REQUIRE(next.pending());
  CHECK(next.pending()->at_most == 31);
  CHECK(next.remedies() == Remedies{.skipped = {{29 * 8, 16}, {31 * 8 + 16, 8}}});
  // Killed in the middle of the second rollback, with the first applied.
  LossWatch third = opened(stage, {.skipped = {{29 * 8, 16}}});
  REQUIRE(third.pending());
  CHECK(third.pending()->at_most == 31);
  LossWatch fourth = opened(stage, third.remedies());
  CHECK(!fourth.pending());
}

TEST_CASE("a supervisor that died before it could decide leaves the decision to the next", "[loss]") {
  SupervisedStage stage(watched_plan(LossPolicy::warn));
  record_start(stage, 0);
  {
    LossWatch without = opened(stage);  // it records the steps, and decides nothing
    record_steps(stage, without, 1, 32, {30});
  }
  stage.plan.job.job.observability.loss_monitor.policy = LossPolicy::skip;
  LossWatch next = opened(stage);
  REQUIRE(next.pending());
  CHECK(next.pending()->at_most == 29);
  CHECK(next.pending()->may_begin_again);  // nothing was ever saved
}

TEST_CASE("what earlier attempts went through is decided no more", "[loss]") {
  SupervisedStage stage(watched_plan(LossPolicy::warn));
  record_start(stage, 0);
  {
    LossWatch without = opened(stage);
    record_steps(stage, without, 1, 60, {30});
  }
  record_start(stage, 50);
  stage.plan.job.job.observability.loss_monitor.policy = LossPolicy::skip;
  LossWatch next = opened(stage);
  CHECK(!next.pending());
}

TEST_CASE("a run whose checkpoints before a spike are removed goes on, and says so", "[loss]") {
  SupervisedStage stage(watched_plan());
  record_start(stage, 0);
  record_checkpoint(stage, 20);  // and removed since
  LossWatch watch = opened(stage);
  record_steps(stage, watch, 1, 35, {30});
  CHECK(!watch.pending());
  CHECK(recorded(stage).decisions.empty());
  REQUIRE(stage.events("loss_unanswered").size() == 1);
  opened(stage);  // the next supervisor knows it
  CHECK(stage.events("loss_unanswered").size() == 1);
  CHECK(stage.events("loss_spike").size() == 1);
}

TEST_CASE("after as many rollbacks as allowed the run stops with its cause", "[loss]") {
  auto plan = watched_plan();
  plan.job.job.observability.loss_monitor.max_rollbacks = 2;
  SupervisedStage stage(plan);
  record_start(stage, 0);
  LossWatch watch = opened(stage);
  int64_t offset = 0;
  for (int i = 0; i < 2; ++i, offset += 8) {
    record_steps(stage, watch, 1, 31, {30}, offset);
    REQUIRE(watch.pending());
    forget_steps_beyond(stage, 0);
    watch.begin(0, false);
  }
  CHECK_NOTHROW(watch.require_not_spent());
  record_steps(stage, watch, 1, 31, {30}, offset);
  CHECK(!watch.pending());
  try {
    watch.require_not_spent();
    FAIL("the run goes on");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDiverged);
    const std::string text = error.what();
    CHECK(text.find("the loss rose to 9 in step 30") == 0);
    CHECK(text.find("has gone back for its loss 2 times") != std::string::npos);
  }
}

TEST_CASE("a run that diverges again at the same step gets a lower rate each time, until it stops",
          "[loss]") {
  auto plan = watched_plan(LossPolicy::lower_rate);
  plan.job.job.observability.loss_monitor.max_rollbacks = 2;
  SupervisedStage stage(plan);
  record_start(stage, 0);
  LossWatch watch = opened(stage);
  const std::vector<int64_t> bad = {30, 31, 32, 33, 34, 35};
  for (const double factor : {0.5, 0.25}) {
    record_steps(stage, watch, 1, 35, bad);
    REQUIRE(watch.pending());
    CHECK(watch.remedies().rate_factor(30) == factor);
    // Loaded with what its checkpoint knows, a rank has the same rate.
    CHECK(with(Remedies{.rates = {{30, 500, 0.5}}}, watch.remedies()).rate_factor(30) == factor);
    forget_steps_beyond(stage, 0);
    watch.begin(0, false);
  }
  record_steps(stage, watch, 1, 35, bad);
  CHECK_THROWS_AS(watch.require_not_spent(), Error);
}

TEST_CASE("a lower rate is decided once for a spike that its own first step shows again", "[loss]") {
  SupervisedStage stage(watched_plan(LossPolicy::lower_rate));
  record_start(stage, 0);
  LossWatch watch = opened(stage);
  record_steps(stage, watch, 1, 31, {30});
  REQUIRE(watch.pending());
  CHECK(watch.remedies() == Remedies{.rates = {{30, 500, 0.5}}});
  forget_steps_beyond(stage, 0);
  watch.begin(0, false);
  record_steps(stage, watch, 1, 31, {30});  // the loss of step 30 is that of the weights before it
  CHECK(!watch.pending());
  CHECK(recorded(stage).decisions.size() == 1);
}

TEST_CASE("a run that goes back for its loss begins from no later state, and that is no restart", "[loss]") {
  GoingBack run;
  run.recovery.progressed(50);
  run.recovery.saved(48);
  run.recovery.go_back(44, false, "the loss rose: back to step 44 or before");
  run.recovery.attempt_ended({.how = AttemptEnd::went_back}, 0);
  const auto find = std::get<FindCheckpoint>(run.next());
  CHECK(find.at_most == 44);
  run.recovery.checkpoint_found(40);
  run.go();
  CHECK(run.start.step == 40);
  CHECK(run.start.why == "the loss rose: back to step 44 or before");
  CHECK(run.recovery.restarts() == 0);
  // That attempt has begun with the decision: what fails now goes on from the newest state.
  run.recovery.progressed(60);
  run.fail();
  CHECK(!std::get<FindCheckpoint>(run.next()).at_most);
}

TEST_CASE("a failure on the way back does not lead to a later state", "[loss]") {
  GoingBack run;
  run.recovery.progressed(50);
  run.recovery.saved(48);
  run.recovery.go_back(44, false, "the loss rose");
  run.fail();
  CHECK(std::get<FindCheckpoint>(run.next()).at_most == 44);
  // It had one, so it never begins again by itself: it goes on from its newest state.
  run.recovery.no_checkpoint(0);
  CHECK(run.recovery.take_not_gone_back() == 44);
  CHECK(!run.recovery.take_not_gone_back());
  CHECK(!std::get<FindCheckpoint>(run.next()).at_most);
  run.recovery.checkpoint_found(48);
  run.go();
  CHECK(run.start.step == 48);
}

TEST_CASE("a run that never had a checkpoint so early begins again to go back", "[loss]") {
  GoingBack run;
  run.recovery.progressed(5);
  run.recovery.saved(4);
  run.recovery.go_back(2, true, "the loss rose");
  run.recovery.attempt_ended({.how = AttemptEnd::went_back}, 0);
  CHECK(std::get<FindCheckpoint>(run.next()).at_most == 2);
  run.recovery.no_checkpoint(0);
  run.go();
  CHECK(!run.start.step);
}

TEST_CASE("a supervisor that finds a run on its way back finishes that first", "[loss]") {
  for (const int64_t saved : {40, 48}) {
    auto o = two_nodes();
    o.from_step = saved;
    Recovery recovery(o, 0);
    recovery.go_back(44, false, "the loss rose");
    for (const std::string& name : o.nodes) recovery.node_ready(name, 2, 0);
    const Decision decision = recovery.next(0);
    CAPTURE(saved);
    if (saved > 44)
      CHECK(std::get<FindCheckpoint>(decision).at_most == 44);
    else
      CHECK(std::get<StartAttempt>(decision).step == 40);
  }
}

TEST_CASE("on the way back no later state is taken from the memory of nodes", "[loss]") {
  auto o = two_nodes();
  o.from_step = 40;
  o.ask_nodes = true;
  Recovery recovery(o, 0);
  recovery.go_back(44, false, "the loss rose");
  for (const std::string& name : o.nodes) recovery.node_ready(name, 2, 0);
  CHECK(std::get<FindCheckpoint>(recovery.next(0)).at_most == 44);
}

TEST_CASE("a decision that cannot be carried out is taken back, and is not made again", "[loss]") {
  SupervisedStage stage(watched_plan());
  record_start(stage, 0);
  LossWatch watch = opened(stage);
  record_steps(stage, watch, 1, 31, {30});
  REQUIRE(watch.pending());
  watch.withdraw();
  CHECK(!watch.pending());
  CHECK(watch.remedies().empty());
  CHECK(stage.events("loss_unanswered").size() == 1);
  LossWatch next = opened(stage);  // it reads the same steps
  CHECK(!next.pending());
  CHECK(recorded(stage).decisions.empty());
  CHECK(recorded(stage).unanswered.size() == 1);
}
