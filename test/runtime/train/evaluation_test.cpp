// Goal: an evaluation gives the same numbers however its micro-batches are shared out and sent through a
// pipeline; tasks are scored on every mesh as `trainctl eval` scores the checkpoint, and change no bit of the
// training.
// Method: runs of a tiny model on thread ranks over all axes and schedules, with numbers of micro-batches that
// divide nothing; validation losses and scores are compared exactly with one rank, scores with those of a
// Generator, root hashes with a run without tasks.
#include <catch2/catch.hpp>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/train/generate/evaluate.h"
#include "runtime/train/run_tasks.h"
#include "test/support/child.h"
#include "test/support/described_models.h"
#include "test/support/task_files.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using Catch::Contains;
using parallel::Schedule;

namespace {

JobSpec evaluated_job(Family family, const std::string& folder) {
  JobSpec job = tiny_job(family, folder);
  job.model.num_layers = 8;
  job.parallelism.lanes = 2;
  job.batch.global_sequences = 24;
  job.data.val = job.data.train;
  job.schedule.total_steps = 3;
  write_file(folder + "/a.bin", random_tasks(37, 97, 1));
  write_file(folder + "/b.bin", random_tasks(5, 97, 2));
  return job;
}

/// With 2 in each score.
JobSpec scored_job(Family family, const std::string& folder) {
  JobSpec job = evaluated_job(family, folder);
  job.eval = {.every_steps = 2, .tasks = {folder + "/a.bin", folder + "/b.bin"}};
  return job;
}

const TestMesh kMeshes[] = {{.pipeline = 2, .zero = 0},
                            {.data = 2, .pipeline = 4, .zero = 0},
                            {.data = 2, .pipeline = 3, .zero = 3},
                            {.data = 2, .pipeline = 2, .zero = 2, .schedule = Schedule::interleaved},
                            {.pipeline = 4, .zero = 0, .schedule = Schedule::interleaved},
                            {.data = 2, .pipeline = 2, .zero = 3, .schedule = Schedule::zb_v},
                            {.pipeline = 4, .zero = 0, .schedule = Schedule::dualpipev},
                            {.pipeline = 3, .zero = 0, .schedule = Schedule::gpipe}};

std::vector<std::vector<TaskScore>> scores_of(const ThreadRun& run) {
  std::vector<std::vector<TaskScore>> scores;
  for (const std::string& line : run.lines) scores.push_back(step_view(line).tasks);
  return scores;
}

std::string shown(const std::vector<TaskScore>& tasks) {
  std::string text;
  for (const TaskScore& task : tasks)
    text += fmt::format("{} {} {} {}\n", task.name, task.examples, task.accuracy, task.accuracy_of_sums);
  return text;
}

/// The scores that `trainctl eval` gives for a checkpoint.
std::vector<TaskScore> scored_alone(const JobSpec& job, const std::string& checkpoint) {
  const auto backend = kernels::make_cpu_backend(1);
  const auto opened = ckpt::Checkpoint::open(real_file_system(), checkpoint);
  Generator generator(job, *opened, *backend);
  std::vector<TaskScore> scores;
  for (const std::string& path : job.eval.tasks) {
    const TaskFile file = read_task_file(real_file_system(), path, nullptr, job.model.vocab_size, 0);
    const RightEndings right =
        right_endings(file, task_likelihoods(generator, file, std::nullopt).of_endings);
    const double examples = double(file.examples.size());
    scores.push_back({.name = path.substr(path.rfind('/') + 1),
                      .examples = int64_t(file.examples.size()),
                      .accuracy = double(right.by_mean) / examples,
                      .accuracy_of_sums = double(right.by_sum) / examples});
  }
  return scores;
}

}  // namespace

TEST_CASE("an evaluation has the same bits with several micro-batches in a pipeline", "[evaluation]") {
  for (const Family family : {Family::gpt2, Family::llama})
    for (const int64_t sequences : {1, 5, 23}) {
      const TemporaryFolder dir;
      JobSpec base = evaluated_job(family, dir.path());
      base.eval = {.every_steps = 1, .max_sequences = sequences};
      base.checkpoint.on_exit = false;
      const ThreadRun plain = run_on_threads(base, {.dir = dir.path(), .max_steps = 2});
      REQUIRE(plain.val_losses.size() == 2);
      REQUIRE(plain.val_losses[0] != plain.val_losses[1]);
      for (const TestMesh& m : kMeshes) {
        CAPTURE(int(family), sequences, text_of(m));
        const ThreadRun run =
            run_on_threads(on_mesh(base, m), {.dir = dir.path(), .max_steps = 2});
        CHECK(run.val_losses == plain.val_losses);
        CHECK(run.losses == plain.losses);
      }
    }
}

TEST_CASE("tasks are scored on every mesh as the checkpoint is, and change no bit", "[evaluation]") {
  const TemporaryFolder dir;
  const JobSpec base = scored_job(Family::llama, dir.path());
  const auto run = [&](const JobSpec& job, const char* name) {
    return run_on_threads(job, {.dir = dir.path() + "/" + name});
  };
  JobSpec without = base;
  without.eval = {};
  const ThreadRun plain = run(without, "plain"), scored = run(base, "scored");
  CHECK(scored.root_hash == plain.root_hash);
  CHECK(scored.losses == plain.losses);
  const auto scores = scores_of(scored);
  REQUIRE(scores.size() == 3);
  CHECK(scores[0].empty());
  REQUIRE(scores[1].size() == 2);
  CHECK(scores[1][0].examples == 37);
  CHECK(scores[1][1].examples == 5);
  CHECK(shown(scores[2]) == shown(scored_alone(base, scored.checkpoint)));
  int number = 0;
  for (const TestMesh& m : kMeshes) {
    CAPTURE(text_of(m));
    const ThreadRun other = run(on_mesh(base, m), std::to_string(number++).c_str());
    CHECK(other.root_hash == plain.root_hash);
    const auto of_other = scores_of(other);
    REQUIRE(of_other.size() == scores.size());
    for (size_t i = 0; i < scores.size(); ++i) CHECK(shown(of_other[i]) == shown(scores[i]));
  }
}

TEST_CASE("tasks are scored with tensor and context ranks, experts, modules for more tokens",
          "[evaluation]") {
  const TemporaryFolder dir;
  JobSpec tensor =
      on_mesh(scored_job(Family::llama, dir.path()), {.tensor = 2, .data = 2, .pipeline = 2, .zero = 0});
  tensor.batch.micro_sequences = 3;
  JobSpec cut = scored_job(Family::llama, dir.path());
  cut.parallelism.context_blocks = 2;
  cut.parallelism.context = 2;
  cut.parallelism.lanes = 4;
  JobSpec experts = scored_job(Family::llama, dir.path());
  describe_balanced_experts(experts.model);
  experts.parallelism.lanes = 8;
  experts.parallelism.data = 2;
  experts.parallelism.expert = 2;
  JobSpec ahead = on_mesh(scored_job(Family::llama, dir.path()), {.pipeline = 2, .zero = 0});
  describe_latent_mtp(ahead.model);
  int number = 0;
  for (const JobSpec& job : {tensor, cut, experts, ahead}) {
    CAPTURE(number);
    const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/run" + std::to_string(number++)});
    CHECK(shown(scores_of(run).back()) == shown(scored_alone(job, run.checkpoint)));
    JobSpec without = job;
    without.eval = {};
    CHECK(run_on_threads(without, {.dir = dir.path() + "/plain" + std::to_string(number)}).root_hash ==
          run.root_hash);
  }
}

TEST_CASE("experts with a capacity: an evaluation drops of each sequence by itself", "[evaluation]") {
  const TemporaryFolder dir;
  JobSpec job = scored_job(Family::llama, dir.path());
  describe_balanced_experts(job.model);
  job.model.moe.capacity_factor = 0.7;
  job.batch.micro_sequences = 3;
  const ThreadRun run = run_on_threads(job, {.dir = dir.path() + "/run"});
  CHECK(shown(scores_of(run).back()) == shown(scored_alone(job, run.checkpoint)));
  const JobSpec shared = on_mesh(job, {.expert = 2, .data = 2, .pipeline = 2, .zero = 1});
  check_equal_runs(run_on_threads(shared, {.dir = dir.path() + "/shared"}), run);
  // Weights that stay as they begin: how many sequences are together changes no number of an evaluation.
  job.schedule.lr = job.schedule.min_lr = 0;
  const auto loss_of = [&](int64_t together, double factor) {
    JobSpec still = job;
    still.batch.micro_sequences = together;
    still.model.moe.capacity_factor = factor;
    // Not by weight: products of other rows may round weights that are nearly equal to another order.
    still.model.moe.drop_policy = DropPolicy::position;
    still.checkpoint.on_exit = false;
    return run_on_threads(still, {.max_steps = 2}).val_losses.at(0);
  };
  const double three = loss_of(3, 0.2);
  CHECK(std::abs(three - loss_of(1, 0.2)) < tolerance::kLossOfSizes);
  CHECK(std::abs(three - loss_of(1, 0)) > 20 * tolerance::kLossOfSizes);  // it drops
}

TEST_CASE("a run that goes on scores tasks as one that was never stopped", "[evaluation][resume]") {
  const TemporaryFolder dir;
  JobSpec job = scored_job(Family::gpt2, dir.path());
  job.schedule.total_steps = 5;
  job.eval = {.every_steps = 1, .tasks = job.eval.tasks, .tasks_every_steps = 2};
  const ThreadRun whole = run_on_threads(job, {.dir = dir.path() + "/whole"});
  const ThreadRun begun = run_on_threads(job, {.dir = dir.path() + "/cut", .max_steps = 3});
  const ThreadRun rest = run_on_threads(on_mesh(job, {.pipeline = 2, .zero = 0}),
                                        {.dir = dir.path() + "/cut", .resume_from = begun.checkpoint});
  const auto expected = scores_of(whole), first = scores_of(begun), second = scores_of(rest);
  REQUIRE(expected.size() == 5);
  for (size_t i = 0; i < 5; ++i) {
    CHECK(expected[i].size() == (i == 1 || i >= 3 ? 2u : 0u));
    CHECK(shown(i < 3 ? first.at(i) : second.at(i - 3)) == shown(expected[i]));
  }
  CHECK(rest.root_hash == whole.root_hash);
}

TEST_CASE("task files that do not fit the model are refused in one sentence", "[evaluation]") {
  const TemporaryFolder dir;
  JobSpec job = scored_job(Family::gpt2, dir.path());
  const auto refusal = [&](const std::string& content) -> std::string {
    write_file(dir.path() + "/a.bin", content);
    try {
      RunTasks::check(job, real_file_system());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(random_tasks(3, 97, 1)) == "");
  CHECK_THAT(refusal(random_tasks(40, 300, 1)), Contains("but the model has 97; the file was made with"));
  CHECK_THAT(refusal(""), Contains("it has no example"));
  CHECK_THAT(refusal(task_bytes({20240522, 1, 1, 100}, {65535, 26, 0, 0, 2, 0, 1, 3, 3, 4, 5, 6, 7})),
             Contains("example 1"));
  CHECK_THAT(refusal(R"({"context": "a", "endings": ["b", "c"], "label": 0})"), Contains("data.tokenizer"));
  job.eval.tasks.push_back(dir.path() + "/none");
  CHECK_THAT(refusal(random_tasks(3, 97, 1)), Contains("there is no task file"));
}
