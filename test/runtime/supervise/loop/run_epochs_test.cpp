// Goal: an epoch has the next number, and its records say where it began; what lies beyond that is moved
//       aside; a supervisor that takes an epoch over knows how far it is.
// Method: a run directory with the files of an epoch before, by hand; the records are read back.
#include "runtime/base/json.h"
#include "runtime/supervise/loop/run_epochs.h"

#include <catch2/catch.hpp>

#include "runtime/train/measure/step_line.h"
#include "test/runtime/supervise/loop/supervised_stage.h"

using namespace trainctl;

namespace {

struct EpochsStage : test::SupervisedStage {
  explicit EpochsStage(SupervisePlan given = test::plan_of_two_nodes()) : SupervisedStage(std::move(given)) {
    source.emplace(*run);
    checkpoints.emplace(plan, run->directory, real_file_system(), clock, run->log, run->lock);
    epochs.emplace(*run, *source, *checkpoints);
  }
  const JobSpec& job() const { return plan.job.job; }

  std::optional<RunSource> source;
  std::optional<RunCheckpoints> checkpoints;
  std::optional<RunEpochs> epochs;
};

/// The files of a run whose newest epoch is `epoch` and has reported `steps` steps.
void write_epoch(const RunDirectory& run, uint64_t epoch, int64_t steps) {
  AttemptFile file;
  file.epoch = epoch;
  real_file_system().replace_text(run.attempt(), file.to_json());
  std::string lines;
  for (int64_t step = 1; step <= steps; ++step) lines += step_line_text({.step = step}) + "\n";
  real_file_system().replace_text(run.metrics(), lines);
}

}  // namespace

TEST_CASE("a damaged attempt.json costs what it alone knew: the events have the epochs", "[run_epochs]") {
  EpochsStage stage;
  FileSystem& fs = real_file_system();
  CHECK_FALSE(newest_attempt(fs, stage.directory).has_value());
  fs.replace_text(stage.directory.events(), R"({"v":1,"t":1,"kind":"start","epoch":1,"from_step":0}
{"v":1,"t":2,"kind":"restart"}
{"v":1,"t":3,"kind":"start","epoch":4,"from_step":8}
half a li)");
  for (const char* text : {"", "{\"epoch\": 4, \"mar", "[]"}) {
    fs.replace_text(stage.directory.attempt(), text);
    const auto newest = newest_attempt(fs, stage.directory);
    REQUIRE(newest);
    CHECK(newest->damage.exists());
    CHECK(newest->file.epoch == 4);
    CHECK(newest->file.beginnings == std::vector<Beginning>{{1, 0}, {4, 8}});
    CHECK(newest->file.nodes.empty());
  }
  write_epoch(stage.directory, 7, 0);
  CHECK_FALSE(newest_attempt(fs, stage.directory)->damage.exists());
  CHECK(last_epoch(fs, stage.directory) == 7);
}

TEST_CASE("the first epoch of a run begins at step 0", "[run_epochs]") {
  EpochsStage stage;
  CHECK(last_epoch(real_file_system(), stage.directory) == 0);
  stage.run->log.status().state = RunState::waiting;
  stage.run->log.status().reason = "waiting for 1 node that is being started";
  stage.epochs->begin(stage.job().mesh().world_size());
  const RunStatus& status = stage.run->log.status();
  CHECK(status.epoch == 1);
  CHECK(status.reason == "");  // it has come
  CHECK(status.step == 0);
  CHECK(status.saved_step == -1);
  CHECK(status.staged_step == -1);
  REQUIRE(stage.events("start").size() == 1);
  const Json event = stage.events("start")[0];
  CHECK(event.at("epoch") == 1);
  CHECK(event.at("ranks") == 2);
  CHECK(event.at("from_step") == 0);
}

TEST_CASE("an epoch that goes back has the next number and moves later steps aside", "[run_epochs]") {
  SupervisePlan plan = test::plan_of_two_nodes();
  plan.resume_step = 20;
  EpochsStage stage(plan);
  stage.plan.resume_from = stage.directory.checkpoints(stage.job().checkpoint) + "/step-20";
  stage.source.emplace(*stage.run);
  write_epoch(stage.directory, 4, 25);
  stage.run->log.status().step = 25;

  stage.epochs->restart({.nodes = {"b"}, .width = {.data = 1, .ranks = 1}, .step = 20, .why = "a was lost"},
                        3);
  stage.epochs->begin(stage.job().mesh().world_size());

  REQUIRE(stage.events("restart").size() == 1);
  const Json restart = stage.events("restart")[0];
  CHECK(restart.at("restart") == 3);
  CHECK(restart.at("from_step") == 20);
  CHECK(restart.at("lost_steps") == 5);
  CHECK(restart.at("reason") == "a was lost");
  CHECK(stage.printed("continuing from checkpoint step 20") == 1);
  REQUIRE(stage.events("start").size() == 1);
  CHECK(stage.events("start")[0].at("epoch") == 5);
  CHECK(stage.events("start")[0].at("superseded_steps") == 5);
  CHECK(lines_of(real_file_system(), stage.directory.metrics()).size() == 20);
  const RunStatus& status = stage.run->log.status();
  CHECK(status.epoch == 5);
  CHECK(status.step == 20);
  CHECK(status.saved_step == 20);
  CHECK(status.restarts == 3);
}

TEST_CASE("an epoch that is taken over goes on where it is", "[run_epochs]") {
  EpochsStage stage;
  write_epoch(stage.directory, 4, 25);
  RunStatus before;
  before.step = 24;  // written before the last step was
  before.saved_step = 20;
  before.restarts = 2;
  real_file_system().replace_text(stage.directory.status(), before.to_json());
  AttemptFile file;
  file.epoch = 4;
  stage.epochs->attach(file);
  const RunStatus& status = stage.run->log.status();
  CHECK(status.epoch == 4);
  CHECK(status.step == 25);
  CHECK(status.saved_step == 20);
  CHECK(status.restarts == 2);
  CHECK(stage.events("start").empty());
  CHECK(stage.printed("the ranks of attempt 4 are alive") == 1);
}
