// Goal: GPUs share sequences: the same bits on every number of context ranks with the same blocks, whether
// they gather keys or exchange heads, the losses of the CPU, and the memory that the plan says. Method: tiny
// models that between them have every kind of attention and of what adds over rows, ranks that share one GPU,
// meshes with pipelines and ZeRO, against one rank with the same blocks; a model whose heads have the tensor
// cores' tiles.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/plan/plan.h"
#include "test/cuda_training/gpu_runs.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

JobSpec shared_job(Family family, DType compute, int blocks, const std::string& dir, bool documents = false) {
  JobSpec job = tiny_job(family, dir);
  if (documents) train_on(job, dir, many_documents(12));
  job.compute = compute;
  job.parallelism.sequence_parallel = false;
  job.parallelism.context_blocks = blocks;
  job.parallelism.lanes = 2;
  job.batch = {.global_sequences = 4, .micro_sequences = 2};
  return job;
}

/// One rank against the CPU within `tolerance`, then each mesh against the one rank.
void check_shared_meshes(const JobSpec& base, const std::string& dir, double tolerance,
                         const std::vector<void (*)(JobSpec&)>& meshes) {
  prepare_devices(1, 1);
  const ThreadRun plain = run_on_gpu(base, dir + "/plain", effort().steps);
  REQUIRE(plain.losses.size() == size_t(effort().steps));
  const ThreadRun cpu = run_on_threads(base, {.dir = dir + "/cpu", .max_steps = effort().steps});
  for (size_t i = 0; i < plain.losses.size(); ++i)
    CHECK(std::abs(plain.losses[i] - cpu.losses[i]) < tolerance);
  for (size_t i = 0; i < meshes.size(); ++i) {
    JobSpec job = base;
    meshes[i](job);
    CAPTURE(i, job.parallelism.context, job.parallelism.pipeline, job.parallelism.data);
    prepare_devices(1, i + 2);
    check_equal_runs(run_on_gpu(job, dir + "/" + std::to_string(i), effort().steps), plain);
  }
}

void two_ranks(JobSpec& j) { j.parallelism.context = 2; }
void four_ranks(JobSpec& j) { j.parallelism.context = 4; }
void two_of_heads(JobSpec& j) {
  two_ranks(j);
  j.parallelism.context_comm_type = parallel::ContextComm::a2a;
}
void four_of_heads(JobSpec& j) {
  four_ranks(j);
  j.parallelism.context_comm_type = parallel::ContextComm::a2a;
}
void two_stages_of_heads(JobSpec& j) {
  two_of_heads(j);
  j.parallelism.pipeline = 2;
  j.recompute = Recompute::full;
}
void two_stages(JobSpec& j) {
  j.parallelism.context = j.parallelism.pipeline = 2;
  j.parallelism.schedule = Schedule::zb_h1;
  j.recompute = Recompute::selective;
}
void two_lanes_of_two(JobSpec& j) {
  j.parallelism.context = j.parallelism.data = 2;
  j.parallelism.zero_stage = 3;
  j.recompute = Recompute::full;
}

}  // namespace

TEST_CASE("GPUs that share sequences have the bits of one: gpt2 f32", "[bits][context_bits]") {
  const TemporaryFolder dir;
  check_shared_meshes(shared_job(Family::gpt2, DType::f32, 4, dir.path()), dir.path(),
                      tolerance::kLossFewSteps,
                      {two_ranks, four_ranks, two_stages, two_lanes_of_two, four_of_heads});
}

TEST_CASE("GPUs that share sequences have the bits of one: a layer with everything, bf16, documents",
          "[bits][context_bits]") {
  const TemporaryFolder dir;
  JobSpec job = shared_job(Family::llama, DType::bf16, 4, dir.path(), true);
  describe_everything(job.model);
  check_shared_meshes(job, dir.path(), tolerance::kLossBf16,
                      {two_ranks, four_ranks, two_stages, two_lanes_of_two, two_stages_of_heads});
}

TEST_CASE("GPUs that share sequences have the bits of one: heads for tensor cores, latent attention, experts",
          "[bits][context_bits]") {
  for (void (*describe)(ModelSpec&) : {+[](ModelSpec& m) { m.head_dim_given = 64; }, describe_more_latent,
                                       describe_grouped_experts, describe_biased_products}) {
    const TemporaryFolder dir;
    JobSpec job = shared_job(Family::llama, DType::bf16, 2, dir.path());
    describe(job.model);
    CAPTURE(job.model.head_dim(), job.model.moe.num_experts);
    check_shared_meshes(job, dir.path(), tolerance::kLossBf16, {two_ranks, two_of_heads});
  }
}

TEST_CASE("a rank that shares sequences takes the GPU memory that the plan says", "[plan]") {
  const TemporaryFolder dir;
  JobSpec base = shared_job(Family::llama, DType::bf16, 4, dir.path(), true);
  base.checkpoint.on_exit = false;
  for (void (*mesh)(JobSpec&) : {+[](JobSpec&) {}, two_ranks, four_ranks, two_stages, two_lanes_of_two,
                                 two_of_heads, two_stages_of_heads}) {
    JobSpec job = base;
    mesh(job);
    CAPTURE(job.parallelism.context, job.parallelism.pipeline, job.parallelism.data);
    prepare_devices(1, 4);
    const ThreadRun run = run_on_gpu(job, "", 1);
    size_t planned = 0, taken = 0;
    for (const RankMemory& m : make_plan(job, DeviceKind::cuda).stages)
      planned = std::max(planned, m.total() - m.nccl);
    for (const size_t bytes : run.allocated_bytes) taken = std::max(taken, bytes);
    CHECK(taken == planned);  // to the byte
  }
}
