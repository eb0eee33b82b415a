// Goal: latent attention keeps the same bits on every mesh, with documents, with Muon and through a stop and
// a resume on another mesh, and takes the memory that its plan says. Method: two described models on thread
// ranks, 6 steps with 4 lanes: losses, gradient norms and root hash against one plain rank, for tensor widths
// 1 and 2 each, and between widths within rounding; memory against that of heads with keys and values of
// their own on the same mesh.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/file_system.h"
#include "runtime/plan/plan.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

constexpr int64_t kLatentSteps = 6;

JobSpec latent_job(const TemporaryFolder& dir, void (*describe)(ModelSpec&), int tensor, DType compute) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe(job.model);
  job.compute = compute;
  job.parallelism.tensor = tensor;
  job.parallelism.lanes = 4;
  job.batch.global_sequences = 8;  // 2 micro-batches a lane
  return job;
}
void describe_latent_experts(ModelSpec& m) { describe_latent(m), describe_balanced_experts(m); }

const TestMesh kLatentMeshes[] = {
    {.data = 2, .zero = 0, .recompute = Recompute::full},
    {.data = 2, .zero = 2, .recompute = Recompute::selective},
    {.pipeline = 2, .schedule = Schedule::zb_h1},
    {.data = 2, .pipeline = 2, .schedule = Schedule::zb_h1, .recompute = Recompute::selective},
    {.data = 2, .pipeline = 2, .zero = 0, .schedule = Schedule::interleaved},
    {.data = 4, .zero = 3},
    {.pipeline = 4, .schedule = Schedule::gpipe, .recompute = Recompute::full},
    {.data = 3, .recompute = Recompute::selective}};

/// Each mesh that has at most 8 ranks, against one plain rank.
void check_latent_meshes(const JobSpec& base, const std::string& dir) {
  const ThreadRun plain = run_on_threads(base, {.dir = dir + "/plain", .max_steps = kLatentSteps});
  REQUIRE(plain.losses.size() == size_t(kLatentSteps));
  int variant = 0;
  for (const TestMesh& m : kLatentMeshes) {
    if (base.parallelism.tensor * m.data * m.pipeline > 8) continue;
    CAPTURE(base.parallelism.tensor, text_of(m), name_of(base.compute));
    const ThreadRun run = run_on_threads(
        on_mesh(base, m), {.dir = dir + "/" + std::to_string(++variant), .max_steps = kLatentSteps});
    check_equal_runs(run, plain);
  }
}
void check_latent_meshes(void (*describe)(ModelSpec&), int tensor, DType compute) {
  const TemporaryFolder dir;
  check_latent_meshes(latent_job(dir, describe, tensor, compute), dir.path());
}

}  // namespace

TEST_CASE("latent attention: the same bits on every mesh", "[bits][latent]") {
  check_latent_meshes(describe_latent_experts, 1, DType::bf16);
  check_latent_meshes(describe_more_latent, 1, DType::f32);
}

TEST_CASE("latent attention: the same bits on every mesh of two tensor ranks", "[bits][latent]") {
  check_latent_meshes(describe_latent_experts, 2, DType::f32);
  check_latent_meshes(describe_more_latent, 2, DType::bf16);
}

TEST_CASE("latent attention: the same bits with documents, and with Muon by heads", "[bits][latent]") {
  const TemporaryFolder dir;
  JobSpec job = latent_job(dir, describe_latent, 1, DType::f32);
  job.optimizer.type = OptimizerType::muon;
  job.optimizer.muon.split_heads = true;
  train_on(job, dir.path(), many_documents(12));
  check_latent_meshes(job, dir.path());
}

TEST_CASE("latent attention: tensor ranks compute what one computes", "[bits][latent]") {
  for (const auto describe : {describe_latent_experts, describe_more_latent})
    for (const OptimizerType type : {OptimizerType::adamw, OptimizerType::muon}) {
      const TemporaryFolder dir;
      JobSpec job = latent_job(dir, describe, 1, DType::f32);
      job.optimizer.type = type;
      job.optimizer.muon.split_heads = true;
      const ThreadRun one = run_on_threads(job, {.dir = dir.path() + "/one", .max_steps = kLatentSteps});
      for (const int tensor : {2, 4})
        for (const bool sequence_parallel : {false, true}) {
          job.parallelism.tensor = tensor;
          job.parallelism.sequence_parallel = sequence_parallel;
          const ThreadRun cut =
              run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(2 * tensor + sequence_parallel),
                                   .max_steps = kLatentSteps});
          CAPTURE(tensor, sequence_parallel, int(type));
          for (size_t step = 0; step < one.losses.size(); ++step) {
            CHECK(cut.losses[step] == Approx(one.losses[step]).epsilon(tolerance::kLossOfWidths));
            CHECK(cut.grad_norms[step] == Approx(one.grad_norms[step]).epsilon(tolerance::kGradNorm));
          }
        }
    }
}

TEST_CASE("latent attention: a run goes on with the same bits on another mesh", "[bits][latent]") {
  const TemporaryFolder dir;
  const JobSpec base = latent_job(dir, describe_latent_experts, 1, DType::bf16);
  const ThreadRun whole = run_on_threads(base, {.dir = dir.path() + "/whole", .max_steps = kLatentSteps});
  JobSpec job = base;
  job.parallelism.data = 2;
  job.parallelism.zero_stage = 3;
  const ThreadRun begun = run_on_threads(job, {.dir = dir.path() + "/begun", .max_steps = 3});
  job = base;
  job.parallelism.pipeline = 2;
  job.recompute = Recompute::full;
  const ThreadRun rest = run_on_threads(
      job, {.dir = dir.path() + "/rest", .resume_from = begun.checkpoint, .max_steps = kLatentSteps});
  CHECK(rest.root_hash == whole.root_hash);
  job.parallelism.tensor = 2;  // saved by one rank, read by two
  const ThreadRun wide = run_on_threads(
      job, {.dir = dir.path() + "/wide", .resume_from = begun.checkpoint, .max_steps = kLatentSteps});
  for (size_t step = 0; step < rest.losses.size(); ++step)
    CHECK(wide.losses[step] == Approx(rest.losses[step]).epsilon(0.02));  // bf16
}

TEST_CASE("latent attention takes the memory that its plan says", "[latent]") {
  const TemporaryFolder dir;
  const JobSpec base = latent_job(dir, describe_latent, 1, DType::bf16);
  const auto planned_and_allocated = [&](const JobSpec& job, int number) {
    const ThreadRun run =
        run_on_threads(job, {.dir = dir.path() + "/" + std::to_string(number), .max_steps = 1});
    std::vector<std::pair<int64_t, int64_t>> ranks;
    for (size_t rank = 0; rank < run.allocated_bytes.size(); ++rank) {
      const RankMemory of = rank_memory(job, DeviceKind::cpu, parallel::position_of(job.mesh(), int(rank)));
      ranks.emplace_back(int64_t(of.sharding.total() + of.stage.activations + of.stage.scratch()),
                         int64_t(run.allocated_bytes[rank]));
    }
    return ranks;
  };
  int number = 0;
  for (const auto& [tensor, pipeline, recompute] : {std::tuple{1, 1, Recompute::none},
                                                    {1, 1, Recompute::full},
                                                    {2, 1, Recompute::selective},
                                                    {2, 2, Recompute::none}})
    for (const int64_t query_latent : {20, 0}) {
      JobSpec job = base;
      job.parallelism.tensor = tensor;
      job.parallelism.pipeline = pipeline;
      job.recompute = recompute;
      job.model.latent.q_lora_rank = query_latent;
      CAPTURE(tensor, pipeline, int(recompute), query_latent);
      const auto latent = planned_and_allocated(job, ++number);
      job.model.latent = {};
      const auto plain = planned_and_allocated(job, ++number);
      for (size_t rank = 0; rank < latent.size(); ++rank) {
        CHECK(latent[rank].first != plain[rank].first);
        CHECK(latent[rank].first - plain[rank].first == latent[rank].second - plain[rank].second);
      }
    }
}
