// Goal: each feature of a described layer computes gradients of its own loss, whatever backward computes again.
// Method: for each feature alone and for all together, on one rank of the reference backend: the same gradients
// with each recomputation and with halves apart, a loss that falls as their squares say, and steps that the
// placement checker accepts on every mesh.
#include <catch2/catch.hpp>

#include "runtime/model/placement_check.h"
#include "test/runtime/model/one_rank.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"

using namespace trainctl;
using namespace trainctl::test;

namespace {

JobSpec described_job(const TemporaryFolder& dir, const DescribedModel& model) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  job.parallelism.lanes = 1;
  job.checkpoint.chunk_mib = 64;
  model.describe(job.model);
  return job;
}

OneRank one_rank(const JobSpec& job, bool split_backward) {
  return OneRank(job, model_plan(job.model, job.compute), split_backward);
}

}  // namespace

TEST_CASE("described layers have the same gradients, whatever backward computes again") {
  const TemporaryFolder dir;
  for (const DescribedModel& model : described_models()) {
    CAPTURE(model.name);
    JobSpec job = described_job(dir, model);
    const std::vector<float> gradients = one_rank(job, false).gradients();
    CHECK((one_rank(job, true).gradients() == gradients));
    for (const Recompute recompute : {Recompute::selective, Recompute::first_layers, Recompute::full}) {
      job.recompute = recompute;
      job.recompute_layers = 3;
      CHECK((one_rank(job, false).gradients() == gradients));
      // Halves run apart only where a layer keeps what both read.
      if (recompute == Recompute::selective) CHECK((one_rank(job, true).gradients() == gradients));
    }
  }
}

TEST_CASE("the loss of described layers falls as their gradients say") {
  const TemporaryFolder dir;
  for (const DescribedModel& model : described_models()) {
    CAPTURE(model.name);
    OneRank rank = one_rank(described_job(dir, model), false);
    const double before = rank.loss();
    rank.gradients();
    const auto [after, expected] = rank.after_falling(1e-3);
    CHECK(before - after == Approx(expected).epsilon(0.05));
  }
}

TEST_CASE("every mesh's step of described layers has each sum once") {
  const TemporaryFolder dir;
  for (const DescribedModel& model : described_models())
    for (const bool sequence_parallel : {false, true})
      for (const int tensor : {1, 2, 4}) {
        JobSpec job = described_job(dir, model);
        job.parallelism.tensor = tensor;
        job.parallelism.data = job.parallelism.pipeline = 2;
        job.parallelism.lanes = 2;
        job.parallelism.sequence_parallel = sequence_parallel;
        CAPTURE(model.name, sequence_parallel, tensor);
        const ModelTables tables = model_tables(job);
        for (int pp = 0; pp < 2; ++pp)
          CHECK(placement_problem(tables, job, {.pp = pp}).text_or_empty() == "");
      }
}
