// Goal: biases that balance experts follow from counts, and change by nothing else. Method: a tiny model on
// thread ranks; biases in checkpoints against the number of steps, behind steps that are skipped, and where
// they are to stay, and with tensor ranks; gradient norms with and without, and with the losses of routers.
// That they balance: test/kernels/moe_test.cpp.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "test/support/described_models.h"
#include "test/support/selection_biases.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

constexpr double kRate = 1e-3;  // less than scores differ by

JobSpec biased_job(const TemporaryFolder& dir) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe_grouped_experts(job.model);
  job.model.moe.groups = job.model.moe.top_groups = 1;
  job.model.moe.bias_update_rate = kRate;
  job.parallelism.lanes = 4;
  return job;
}

}  // namespace

TEST_CASE("a bias moves by the rate in a step, and none moves with a rate of 0") {
  const TemporaryFolder dir;
  JobSpec job = biased_job(dir);
  job.optimizer.ema_decay = 0.9;
  const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/one", .max_steps = 1});
  int moved = 0;
  for (const float bias : biases_in(job, one.checkpoint)) {
    CHECK((bias == 0 || std::abs(bias) == float(kRate)));  // 0: as many tokens as the mean
    moved += bias != 0;
  }
  CHECK(moved > 16);
  const ThreadRun three = run_on_threads(job, {.dir = dir.path() + "/three", .max_steps = 3});
  int grown = 0;
  for (const float bias : biases_in(job, three.checkpoint)) {
    CHECK(std::abs(bias) < 3.001 * kRate);
    grown += std::abs(bias) > 2.999 * kRate;
  }
  CHECK(grown > 0);
  job.model.moe.bias_update_rate = 0;
  const ThreadRun still = run_on_threads(job, {.dir = dir.path() + "/still", .max_steps = 3});
  for (const float bias : biases_in(job, still.checkpoint)) CHECK(bias == 0);
}

TEST_CASE("ranks of a tensor group count a token once, and a checkpoint has the biases that they make") {
  const TemporaryFolder dir;
  JobSpec job = biased_job(dir);
  const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/one", .max_steps = 1});
  job.parallelism.tensor = 2;
  for (const bool cut : {false, true}) {
    job.parallelism.sequence_parallel = cut;
    const ThreadRun two =
        run_on_threads(job, {.dir = dir.path() + (cut ? "/cut" : "/whole"), .max_steps = 1});
    CHECK(biases_in(job, two.checkpoint) == biases_in(job, one.checkpoint));
  }
}

TEST_CASE("losses of a router are of each sequence, however many a micro-batch has") {
  const TemporaryFolder dir;
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe_balanced_experts(job.model);
  job.model.moe.aux_loss_coefficient = 2;
  job.parallelism.lanes = 2;
  const auto norm_with = [&](int64_t micro_sequences) {
    job.batch.micro_sequences = micro_sequences;
    return run_on_threads(job, {.dir = dir / std::to_string(micro_sequences), .max_steps = 1})
        .grad_norms.at(0);
  };
  const double norm = norm_with(1);
  CHECK(norm_with(2) == Approx(norm).epsilon(tolerance::kBlockGradNorm));
  CHECK(norm_with(4) == Approx(norm).epsilon(tolerance::kBlockGradNorm));
}

TEST_CASE("counts of experts are in no gradient norm, and a skipped step moves no bias") {
  const TemporaryFolder dir;
  JobSpec job = biased_job(dir);
  const ThreadRun with = run_on_threads(job, {.dir = dir.path() + "/with", .max_steps = 1});
  JobSpec other = job;
  other.model.moe.selection_bias = false;
  other.model.moe.bias_update_rate = 0;
  const ThreadRun without = run_on_threads(other, {.dir = dir.path() + "/without", .max_steps = 1});
  CHECK(with.losses == without.losses);  // biases begin as 0
  CHECK(with.grad_norms == without.grad_norms);
  job.schedule.warmup_steps = 0;
  job.schedule.lr = job.schedule.min_lr = 3e38;
  job.optimizer.lr_scale.embedding = 4;  // so that the first step makes them infinite
  job.fault_tolerance.skip_bad_steps = 10;
  const ThreadRun first = run_on_threads(job, {.dir = dir.path() + "/first", .max_steps = 1});
  const ThreadRun skipped = run_on_threads(job, {.dir = dir.path() + "/skipped", .max_steps = 4});
  REQUIRE(std::isnan(skipped.losses.at(1)));
  CHECK(biases_in(job, skipped.checkpoint) == biases_in(job, first.checkpoint));
}

TEST_CASE("a bias follows from what a router chose, with what its expert drops") {
  const TemporaryFolder dir;
  JobSpec job = biased_job(dir);
  job.model.moe.aux_loss_coefficient = 0.1;
  const ThreadRun all = run_on_threads(job, {.dir = dir.path() + "/all", .max_steps = 1});
  job.model.moe.capacity_factor = 0.5;
  const ThreadRun dropped = run_on_threads(job, {.dir = dir.path() + "/dropped", .max_steps = 1});
  CHECK(dropped.losses != all.losses);
  // The first layer's tokens have met no expert yet.
  const std::vector<float> expected = biases_in(job, all.checkpoint),
                           found = biases_in(job, dropped.checkpoint);
  const auto experts = std::ptrdiff_t(job.model.moe.num_experts);
  CHECK(std::vector<float>(found.begin(), found.begin() + experts) ==
        std::vector<float>(expected.begin(), expected.begin() + experts));
  CHECK(std::count(found.begin(), found.begin() + experts, 0.0f) < experts);
}
