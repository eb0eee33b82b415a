// Goal: a run has a loss only where its loss files say so, as much as they say, with the same bits on every
// mesh.
// Method: the same tokens with masks and weights: losses and gradient norms are those that per-target losses
// of runs with one target give; weights of 1 have the bits of no loss file, masks those of weights of 0 and
// 1, and weights twice as large those of half as large ones. Meshes are compared bit for bit with one rank.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "runtime/train/token_feed.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

constexpr int kLossTokens = 1500, kLossVocabulary = 97;

JobSpec loss_job(Family family, const TemporaryFolder& dir, const std::vector<uint8_t>& weights,
                 TargetLoss loss) {
  JobSpec job = tiny_job(family, dir.path());
  std::mt19937 random(5);
  std::vector<TokenDocument> documents;
  for (int begin = 0; begin < kLossTokens; begin += 50) {
    std::vector<int32_t> ids(50);
    for (int32_t& id : ids) id = int32_t(random() % kLossVocabulary);
    documents.push_back({ids});
  }
  write_megatron(dir.path() + "/set", documents);
  if (!weights.empty()) write_loss(dir.path() + "/set", weights);
  DataSource source;
  source.path = dir.path() + "/set";
  job.data.train = {source};
  job.data.loss = loss;
  job.data.documents = Documents::ignore;
  job.data.shuffle = false;
  job.batch.global_sequences = 8;
  return job;
}

std::vector<uint8_t> random_weights(int largest) {
  std::mt19937 random(17);
  std::vector<uint8_t> weights(kLossTokens);
  for (uint8_t& weight : weights) weight = uint8_t(random() % unsigned(largest + 1));
  return weights;
}

ThreadRun run_in(const JobSpec& job, const TemporaryFolder& dir, const std::string& name, int steps = 4) {
  return run_on_threads(job, {.dir = dir / name, .max_steps = steps});
}

void check_equal(const ThreadRun& a, const ThreadRun& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.grad_norms == b.grad_norms);
  CHECK(a.val_losses == b.val_losses);
  CHECK(a.root_hash == b.root_hash);
}

}  // namespace

TEST_CASE("the loss of a step is the weighted mean of the losses of its targets", "[loss_weights]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    // One target of the step counts: its loss. Of two with weights, the loss lies between by their weights.
    const auto first_loss = [&](const std::vector<std::pair<int, int>>& counted, TargetLoss loss) {
      const TemporaryFolder dir;
      std::vector<uint8_t> weights(kLossTokens, 0);
      for (const auto& [token, weight] : counted) weights[size_t(token)] = uint8_t(weight);
      return run_in(loss_job(family, dir, weights, loss), dir, "run", 1).losses.at(0);
    };
    const double a = first_loss({{3, 1}}, TargetLoss::mask), b = first_loss({{40, 1}}, TargetLoss::mask);
    REQUIRE(std::abs(a - b) > 100 * tolerance::kLossF32);
    CHECK(std::abs(first_loss({{3, 1}, {40, 1}}, TargetLoss::mask) - (a + b) / 2) < tolerance::kLossF32);
    CHECK(std::abs(first_loss({{3, 200}, {40, 50}}, TargetLoss::weights) - (4 * a + b) / 5) <
          tolerance::kLossF32);
    CHECK(std::abs(first_loss({{3, 200}, {40, 50}}, TargetLoss::mask) - (a + b) / 2) < tolerance::kLossF32);
    CHECK(std::abs(first_loss({{3, 7}}, TargetLoss::weights) - a) < tolerance::kLossF32);
  }
}

TEST_CASE(
    "weights of 1 train with the bits of a run without loss files, and a mask with those of weights 0 and 1",
    "[loss_weights]") {
  const TemporaryFolder none, ones, mask, weights, scaled;
  const ThreadRun plain = run_in(loss_job(Family::llama, none, {}, TargetLoss::all), none, "run");
  const std::vector<uint8_t> all(kLossTokens, 1);
  check_equal(run_in(loss_job(Family::llama, ones, all, TargetLoss::weights), ones, "a"), plain);
  check_equal(run_in(loss_job(Family::llama, ones, all, TargetLoss::mask), ones, "b"), plain);
  check_equal(run_in(loss_job(Family::llama, ones, random_weights(3), TargetLoss::all), ones, "c"), plain);
  check_equal(run_in(loss_job(Family::llama, ones, random_weights(1), TargetLoss::automatic), ones, "d"),
              plain);

  const std::vector<uint8_t> some = random_weights(1);
  const ThreadRun masked = run_in(loss_job(Family::llama, mask, some, TargetLoss::mask), mask, "run");
  CHECK(masked.losses != plain.losses);
  check_equal(run_in(loss_job(Family::llama, weights, some, TargetLoss::weights), weights, "a"), masked);
  std::vector<uint8_t> doubled = random_weights(100), half = doubled;
  for (uint8_t& weight : doubled) weight = uint8_t(2 * weight);
  const ThreadRun of_half = run_in(loss_job(Family::llama, weights, half, TargetLoss::weights), weights, "b");
  check_equal(run_in(loss_job(Family::llama, scaled, doubled, TargetLoss::weights), scaled, "c"), of_half);
  CHECK(of_half.losses != masked.losses);
}

TEST_CASE("weighed targets have the same bits on every mesh", "[loss_weights]") {
  struct Variant {
    int dp, pp, virtual_stages, zero;
    Schedule schedule;
  };
  for (const auto& [family, loss, documents] :
       {std::tuple{Family::gpt2, TargetLoss::weights, Documents::ignore},
        std::tuple{Family::llama, TargetLoss::weights, Documents::mask},
        std::tuple{Family::llama, TargetLoss::mask, Documents::mask}}) {
    const TemporaryFolder dir;
    JobSpec base = loss_job(family, dir, random_weights(9), loss);
    base.data.documents = documents;
    base.data.shuffle = true;
    base.data.val = base.data.train;
    base.eval = {.every_steps = 3, .max_sequences = 10};
    base.parallelism.lanes = 4;
    const ThreadRun plain = run_in(base, dir, "plain", 6);
    int number = 0;
    for (const Variant& v :
         {Variant{2, 1, 1, 1, Schedule::one_f_one_b}, Variant{1, 3, 1, 0, Schedule::zb_h1},
          Variant{2, 2, 2, 0, Schedule::interleaved}, Variant{4, 1, 1, 3, Schedule::gpipe},
          Variant{3, 2, 1, 0, Schedule::one_f_one_b}, Variant{4, 1, 1, 2, Schedule::one_f_one_b}}) {
      JobSpec job = base;
      job.parallelism.data = v.dp;
      job.parallelism.pipeline = v.pp;
      job.parallelism.virtual_stages = v.virtual_stages;
      job.parallelism.zero_stage = v.zero;
      job.parallelism.schedule = v.schedule;
      CAPTURE(v.dp, v.pp, v.zero, int(family));
      check_equal(run_in(job, dir, std::to_string(++number), 6), plain);
    }
    for (const bool sequence_parallel : {false, true}) {
      JobSpec job = base;
      job.parallelism.tensor = 2;
      job.parallelism.sequence_parallel = sequence_parallel;
      const ThreadRun run = run_in(job, dir, std::to_string(++number), 6);
      for (size_t s = 0; s < 6; ++s) CHECK(std::abs(run.losses[s] - plain.losses[s]) < tolerance::kLossF32);
    }
  }
}

TEST_CASE("rows of weights are there for jobs that weigh targets, on the stage with the head",
          "[loss_weights]") {
  CHECK(BatchRows{.first = true, .weights = true}.bytes_per_token() == 4);
  CHECK(BatchRows{.last = true, .weights = true}.bytes_per_token() == 8);
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9}, starts = {0, 0, 2, 3, 3};
  const std::vector<uint8_t> weights = {9, 0, 3, 255, 1};
  const SampleTokens sample{.tokens = tokens, .document_start = starts, .weights = weights};
  std::vector<int32_t> targets(4);
  kBatchRows[size_t(BatchField::targets)].fill(sample, targets.data());
  CHECK(targets == std::vector<int32_t>{-1, -1, -1, 9});
  std::vector<float> row(4);
  const SampleTokens one_text{.tokens = tokens, .weights = weights};
  kBatchRows[size_t(BatchField::weights)].fill(one_text, reinterpret_cast<int32_t*>(row.data()));
  CHECK(row == std::vector<float>{0, 3, 255, 1});
}
