// Goal: a run of packed documents trains each of them as if it were alone, has the same bits on every mesh,
// and goes on from a checkpoint on another one without losing or repeating a sample. Method: the same
// documents packed best-fit and each in a sequence of its own: losses and gradient norms of an epoch in one
// step agree; thread ranks over dp, pp, tp and ZeRO stages, stopped and resumed, bit for bit.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "data/dataset.h"
#include "runtime/train/trainer.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

JobSpec packed_job(const TemporaryFolder& dir, const std::vector<TokenDocument>& documents) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  train_on(job, dir.path(), documents);
  job.data.documents = Documents::automatic;
  job.data.packing = PackingKind::best_fit;
  return job;
}

}  // namespace

TEST_CASE("packed documents train as each does in a sequence of its own", "[packing]") {
  const TemporaryFolder one, other;
  std::mt19937 random(3);
  std::vector<TokenDocument> documents, alone;
  for (int i = 0; i < 24; ++i) {
    const std::vector<int32_t> text = random_text(random, 2 + i % 16);  // up to 17: a whole sample
    documents.push_back({text});
    alone.push_back({text});
    for (size_t t = text.size(); t < 17; ++t) alone.push_back({{0}});
  }
  JobSpec job = packed_job(one, documents), single = packed_job(other, alone);
  single.model.max_seq_len = job.model.max_seq_len = 17;
  const auto dataset = data::open_dataset(dataset_options(job.data, 97, false));
  CHECK(dataset->samples_per_epoch() < 24);
  job.batch.global_sequences = int64_t(dataset->samples_per_epoch());
  // Stretches of 17 tokens do not overlap: a document and its fill each.
  single.data.packing = PackingKind::stream;
  single.data.documents = Documents::mask;
  single.data.seq_len = 17;
  alone.push_back({{0}});
  train_on(single, other.path(), alone);
  single.batch.global_sequences = 24;
  job.optimizer.grad_clip = single.optimizer.grad_clip = 0.5;  // so that the norms count
  const ThreadRun a = run_on_threads(job, {.dir = one.path() + "/run", .max_steps = 4}),
                  b = run_on_threads(single, {.dir = other.path() + "/run", .max_steps = 4});
  REQUIRE(a.losses.size() == 4);
  for (size_t s = 0; s < 4; ++s) {
    CHECK(std::abs(a.losses[s] - b.losses[s]) < tolerance::kLossF32);
    CHECK(std::abs(a.grad_norms[s] / b.grad_norms[s] - 1) < tolerance::kGradNorm);
  }
}

TEST_CASE("packed documents have the same bits on every mesh and through a resume", "[packing][bits]") {
  const TemporaryFolder dir;
  JobSpec base = packed_job(dir, many_documents(40));
  base.data.val = base.data.train;
  base.eval = {.every_steps = 2, .max_sequences = 10};
  base.parallelism.lanes = 4;
  const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = 6});
  int number = 0;
  for (const auto& [dp, pp, zero] : {std::tuple{2, 1, 3}, {1, 2, 1}, {2, 2, 0}, {3, 1, 1}}) {
    JobSpec job = base;
    job.parallelism.data = dp;
    job.parallelism.pipeline = pp;
    job.parallelism.zero_stage = zero;
    CAPTURE(dp, pp, zero);
    const std::string at = dir.path() + "/" + std::to_string(++number);
    const ThreadRun begun = run_on_threads(job, {.dir = at, .max_steps = 3});
    job.parallelism.data = 4 / dp;
    job.parallelism.pipeline = 3 - pp;
    job.parallelism.zero_stage = 1;
    const ThreadRun rest =
        run_on_threads(job, {.dir = at + "/rest", .resume_from = begun.checkpoint, .max_steps = 6});
    std::vector<double> losses = begun.losses;
    losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
    CHECK(losses == plain.losses);
    CHECK(rest.root_hash == plain.root_hash);
  }
  JobSpec stream = base;
  stream.data.packing = PackingKind::stream;
  stream.data.documents = Documents::mask;
  CHECK(run_on_threads(stream, {.dir = dir.path() + "/stream", .max_steps = 1}).losses[0] != plain.losses[0]);
  base.parallelism.tensor = 2;
  const ThreadRun two = run_on_threads(base, {.dir = dir.path() + "/two", .max_steps = 6});
  for (size_t s = 0; s < 6; ++s) CHECK(std::abs(two.losses[s] - plain.losses[s]) < tolerance::kLossF32);
}
