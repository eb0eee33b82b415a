// Goal: GPUs that share experts train to the bits of one that has them all, in the memory that the plan says.
// Method: tiny models with experts on emulated devices: ranks that share one through host memory, and ranks
// with a device each over emulated NCCL, lazy and random streams; the bits of one rank on one device are the
// measure, and the CPU's losses.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "test/cuda_training/nccl_runs.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

JobSpec with_experts(const std::string& dir, void (*describe)(ModelSpec&), DType compute) {
  JobSpec job = tiny_job(Family::llama, dir);
  describe(job.model);
  job.model.moe.num_experts = 8;
  job.compute = compute;
  job.parallelism.lanes = 4;
  return job;
}

/// One rank of one device, near the CPU.
ThreadRun plain_run(const JobSpec& base, const std::string& dir) {
  prepare_devices(1, 1);
  ThreadRun plain = run_on_gpu(base, dir + "/plain", effort().steps);
  const ThreadRun cpu = run_on_threads(base, {.dir = dir + "/cpu", .max_steps = effort().steps});
  REQUIRE(plain.losses.size() == cpu.losses.size());
  for (size_t i = 0; i < cpu.losses.size(); ++i)
    CHECK(std::abs(plain.losses[i] - cpu.losses[i]) < tolerance::kLossBf16);
  return plain;
}

void check_with_nccl(const JobSpec& base, const std::string& dir, const std::vector<TestMesh>& meshes) {
  const ThreadRun plain = plain_run(base, dir);
  int number = 0;
  for (const TestMesh& m : meshes) {
    CAPTURE(text_of(m));
    check_same_run(on_mesh(base, m), plain, fmt::format("{}/{}-", dir, number++));
  }
}

}  // namespace

TEST_CASE("experts shared by ranks that share one GPU", "[bits]") {
  const TemporaryFolder dir;
  const JobSpec base = with_experts(dir.path(), describe_balanced_experts, DType::bf16);
  const ThreadRun plain = plain_run(base, dir.path());
  int number = 0;
  for (const TestMesh& m : std::vector<TestMesh>{
           {.expert = 2, .data = 2}, {.expert = 4, .data = 4, .zero = 3, .recompute = Recompute::full}}) {
    CAPTURE(m.expert);
    prepare_devices(1, uint64_t(number) + 1);
    const ThreadRun run =
        run_on_gpu(on_mesh(base, m), fmt::format("{}/{}", dir.path(), number++), effort().steps);
    check_equal_runs(run, plain);
  }
}

TEST_CASE("NCCL: experts on 2 and 4 ranks, recomputation, ZeRO", "[nccl_experts]") {
  const TemporaryFolder dir;
  check_with_nccl(with_experts(dir.path(), describe_balanced_experts, DType::bf16), dir.path(),
                  {{.expert = 2, .data = 2, .zero = 0},
                   {.expert = 4, .data = 4, .zero = 2, .recompute = Recompute::full},
                   {.expert = 2, .data = 4, .zero = 3, .recompute = Recompute::selective}});
}

TEST_CASE("NCCL: experts in pipelines, with stages in their middle", "[nccl_experts]") {
  const TemporaryFolder dir;
  check_with_nccl(with_experts(dir.path(), describe_shared_expert, DType::f32), dir.path(),
                  {{.expert = 2, .data = 2, .pipeline = 2, .schedule = Schedule::zb_v},
                   {.expert = 2, .data = 2, .pipeline = 4, .recompute = Recompute::full},
                   {.expert = 2, .data = 2, .pipeline = 2, .zero = 3, .schedule = Schedule::interleaved}});
}

TEST_CASE("NCCL: experts with biases and documents, tensor ranks too", "[nccl_experts]") {
  const TemporaryFolder dir;
  JobSpec base = with_experts(dir.path(), describe_biased_products, DType::bf16);
  train_on(base, dir.path(), many_documents(12));
  base.parallelism.tensor = 2;
  check_with_nccl(base, dir.path(),
                  {{.expert = 4, .data = 4}, {.expert = 2, .data = 2, .pipeline = 2, .zero = 3}});
}

TEST_CASE("NCCL: whole experts that tensor ranks share", "[nccl_experts]") {
  const TemporaryFolder dir;
  JobSpec base = with_experts(dir.path(), describe_biased_products, DType::bf16);
  base.model.num_layers = 2;
  base.parallelism.tensor = base.parallelism.expert = 2;
  base.parallelism.expert_tensor = 1;
  check_with_nccl(base, dir.path(), {{.expert = 4, .data = 2, .zero = 2}});
}

TEST_CASE("NCCL: all rows for some experts, and none for others", "[nccl_experts]") {
  const TemporaryFolder dir;
  JobSpec base = with_experts(dir.path(), describe_experts, DType::f32);
  base.model.moe.top_k = 1;
  base.schedule.lr = 0.3;  // few experts take over
  check_with_nccl(base, dir.path(), {{.expert = 4, .data = 4}});
}

TEST_CASE("NCCL adds the gradients of shared experts, to the same losses and twice the same bits",
          "[nccl_experts]") {
  const TemporaryFolder dir;
  const JobSpec base = with_experts(dir.path(), describe_experts, DType::f32);
  for (const int zero : {1, 3}) {
    CAPTURE(zero);
    JobSpec job = on_mesh(base, {.expert = 2, .data = 4, .zero = zero});
    const auto run_as = [&](const char* name, uint64_t seed) {
      return run_with_nccl(job, fmt::format("{}/{}{}", dir.path(), name, zero), effort().steps, seed);
    };
    const ThreadRun exact = run_as("exact", 1);
    job.parallelism.reduction = GradientSums::fast;
    const ThreadRun once = run_as("once", 1), again = run_as("again", 2);
    CHECK(taken_bytes(once) == planned_bytes(job));
    REQUIRE(once.losses.size() == exact.losses.size());
    for (size_t i = 0; i < exact.losses.size(); ++i)
      CHECK(std::abs(once.losses[i] - exact.losses[i]) < tolerance::kLossFewSteps);
    CHECK(once.losses == again.losses);
    CHECK(once.root_hash == again.root_hash);
  }
}

TEST_CASE("a rank that shares experts takes the memory that the plan says, and nothing in a step",
          "[nccl_experts]") {
  const TemporaryFolder dir;
  JobSpec job = on_mesh(with_experts(dir.path(), describe_biased_products, DType::bf16),
                        {.expert = 2, .data = 2, .recompute = Recompute::full});
  job.checkpoint.on_exit = false;
  const auto counts_of = [&](int64_t steps) {
    CHECK(taken_bytes(run_with_nccl(job, "", steps, 1)) == planned_bytes(job));
    return emulated_gpu::counts(0);
  };
  const emulated_gpu::Counts two = counts_of(2), four = counts_of(4);
  CHECK(four.kernels > two.kernels);
  CHECK(four.allocations == two.allocations);
  CHECK(four.pageable_copies == two.pageable_copies);
}

TEST_CASE("every kernel of ranks that share experts is launched before the first exchange",
          "[nccl_experts]") {
  const TemporaryFolder dir;
  check_loaded_early(
      on_mesh(with_experts(dir.path(), describe_biased_products, DType::bf16), {.expert = 2, .data = 2}),
      dir.path() + "/biased");
}
