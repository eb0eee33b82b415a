// Goal: ranks with a GPU each, joined by NCCL, train to the same bits as one rank, however late streams and
// messages move; and where NCCL is asked to add the gradients, to the same losses, twice the same bits, in
// the memory that the plan says. Method: the real NCCL communicator over emulated devices and an emulated
// NCCL, lazy and random streams, several seeds; the bits of a plain run on one device are the measure.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/plan/plan.h"
#include "test/cuda_training/nccl_runs.h"
#include "test/support/temporary_folder.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

TEST_CASE("every kernel of a run is launched before the first exchange", "[nccl]") {
  const TemporaryFolder dir;
  JobSpec gpt = base_job(Family::gpt2, dir.path(), DType::bf16, 1);
  gpt.parallelism.data = gpt.parallelism.pipeline = 2;
  gpt.parallelism.lanes = 4;
  gpt.parallelism.schedule = Schedule::zb_h1;
  gpt.parallelism.reduction_dtype = DType::bf16;
  check_loaded_early(gpt, dir.path() + "/gpt");
  JobSpec llama = base_job(Family::llama, dir.path(), DType::bf16, 2);
  llama.parallelism.data = 2;
  llama.parallelism.pipeline = 2;
  llama.parallelism.sequence_parallel = true;
  llama.recompute = Recompute::selective;
  check_loaded_early(llama, dir.path() + "/llama");
  JobSpec shared = base_job(Family::llama, dir.path(), DType::bf16, 1);
  shared.parallelism.context = shared.parallelism.pipeline = 2;
  shared.parallelism.context_blocks = 4;
  shared.parallelism.sequence_parallel = false;
  check_loaded_early(shared, dir.path() + "/shared");
}

TEST_CASE("NCCL: dp 2 has the bits of one rank", "[nccl]") {
  const TemporaryFolder dir;
  check_mesh(base_job(Family::llama, dir.path(), DType::bf16, 1), dir.path(), "dp2", [](JobSpec& j) { j.parallelism.data = 2; });
}

TEST_CASE("NCCL: pp 2 and its schedules have the bits of one rank", "[nccl]") {
  const TemporaryFolder dir;
  const JobSpec base = base_job(Family::gpt2, dir.path(), DType::f32, 1);
  check_mesh(base, dir.path(), "1f1b", [](JobSpec& j) { j.parallelism.pipeline = 2; });
  check_mesh(base, dir.path(), "interleaved", [](JobSpec& j) {
    j.parallelism.pipeline = 2;
    j.parallelism.virtual_stages = 2;
    j.parallelism.schedule = Schedule::interleaved;
  });
  check_mesh(base, dir.path(), "zb-v", [](JobSpec& j) {
    j.parallelism.pipeline = 2;
    j.parallelism.virtual_stages = 2;
    j.parallelism.schedule = Schedule::zb_v;
  });
}

TEST_CASE("NCCL: context ranks have the bits of one rank, and take the memory that the plan says", "[nccl]") {
  const TemporaryFolder dir;
  JobSpec base = base_job(Family::llama, dir.path(), DType::bf16, 1);
  base.parallelism.context_blocks = 2;
  base.parallelism.sequence_parallel = false;
  check_mesh(base, dir.path(), "cp2pp2",
             [](JobSpec& j) { j.parallelism.context = j.parallelism.pipeline = 2; });
  check_mesh(base, dir.path(), "cp2dp2", [](JobSpec& j) {
    j.parallelism.context = j.parallelism.data = 2;
    j.parallelism.zero_stage = 3;
  });
  check_mesh(base, dir.path(), "heads", [](JobSpec& j) {
    j.parallelism.context = j.parallelism.pipeline = 2;
    j.parallelism.context_comm_type = parallel::ContextComm::a2a;
  });
  base.parallelism.context = base.parallelism.pipeline = 2;
  CHECK(taken_bytes(run_with_nccl(base, dir.path() + "/memory", 1, 1)) == planned_bytes(base));
}

TEST_CASE("NCCL: tp 2, pp 2, dp 2 has the bits of tp 2 alone", "[nccl]") {
  const TemporaryFolder dir;
  check_mesh(base_job(Family::llama, dir.path(), DType::bf16, 2), dir.path(), "mesh",
             [](JobSpec& j) { j.parallelism.data = j.parallelism.pipeline = 2; });
  // Of eight ranks each has one for its tp group, one for its dp group and one for each of two pipeline
  // edges: none for the world and for its pipe, which carry nothing on the device.
  const std::vector<int> blocks = emulated_gpu::nccl_communicators_made();
  CHECK(blocks.size() == 8 * 4);
  CHECK(std::count(blocks.begin(), blocks.end(), 4) == 8 * 2);
}

namespace {

/// reduction = "fast" beside "exact" on one mesh. `rounds_otherwise`: enough parts that another order of
/// additions can be seen.
void check_fast(Family family, DType compute, int tp, int pp, int dp, int zero_stage, bool rounds_otherwise) {
  CAPTURE(tp, pp, dp, zero_stage);
  const TemporaryFolder dir;
  JobSpec job = tiny_job(family, dir.path());
  job.compute = compute;
  job.parallelism.tensor = tp;
  job.parallelism.pipeline = pp;
  job.parallelism.data = job.parallelism.lanes = dp;
  job.parallelism.zero_stage = zero_stage;
  const ThreadRun exact = run_with_nccl(job, dir.path() + "/exact", 3, 1);
  CHECK(taken_bytes(exact) == planned_bytes(job));
  const size_t exact_bytes = planned_bytes(job);
  job.parallelism.reduction = GradientSums::fast;
  const ThreadRun once = run_with_nccl(job, dir.path() + "/once", 3, 1);
  const ThreadRun again = run_with_nccl(job, dir.path() + "/again", 3, 2);
  REQUIRE(once.losses.size() == exact.losses.size());
  for (size_t i = 0; i < exact.losses.size(); ++i)
    CHECK(std::abs(once.losses[i] - exact.losses[i]) < tolerance::kLossFewSteps);
  CHECK(once.losses == again.losses);
  CHECK(once.grad_norms == again.grad_norms);
  CHECK(once.root_hash == again.root_hash);
  CHECK((once.root_hash != exact.root_hash) == rounds_otherwise);
  CHECK(taken_bytes(once) == planned_bytes(job));
  CHECK(planned_bytes(job) < exact_bytes);
  job.parallelism.reduction_dtype = DType::bf16;
  const ThreadRun in_bf16 = run_with_nccl(job, dir.path() + "/bf16", 3, 1);
  for (size_t i = 0; i < exact.losses.size(); ++i)
    CHECK(std::abs(in_bf16.losses[i] - exact.losses[i]) < tolerance::kLossBf16);
  CHECK(in_bf16.root_hash != once.root_hash);
  CHECK(taken_bytes(in_bf16) == planned_bytes(job));
}

}  // namespace

TEST_CASE("NCCL: ZeRO-2, ZeRO-3 and widths that do not divide the lanes have the bits of one rank",
          "[nccl]") {
  const TemporaryFolder dir;
  JobSpec base = base_job(Family::gpt2, dir.path(), DType::f32, 1);
  base.parallelism.lanes = 8;  // each of one micro-batch
  check_mesh(base, dir.path(), "zero2", [](JobSpec& j) {
    j.parallelism.data = 4;
    j.parallelism.zero_stage = 2;
  });
  check_mesh(base, dir.path(), "zero2pp", [](JobSpec& j) {
    j.parallelism.data = j.parallelism.pipeline = 2;
    j.parallelism.zero_stage = 2;
  });
  check_mesh(base, dir.path(), "zero3", [](JobSpec& j) {
    j.parallelism.data = 4;
    j.parallelism.zero_stage = 3;
  });
  check_mesh(base, dir.path(), "zero3pp", [](JobSpec& j) {
    j.parallelism.data = j.parallelism.pipeline = 2;
    j.parallelism.zero_stage = 3;
    j.parallelism.schedule = Schedule::zb_h1;
  });
  check_mesh(base, dir.path(), "dp3", [](JobSpec& j) { j.parallelism.data = 3; });
  check_mesh(base, dir.path(), "zero3dp3", [](JobSpec& j) {
    j.parallelism.data = 3;
    j.parallelism.zero_stage = 3;
  });
  base.parallelism.data = 4;
  for (const int zero : {2, 3}) {
    base.parallelism.zero_stage = zero;
    const std::string run = fmt::format("{}/memory{}", dir.path(), zero);
    CHECK(taken_bytes(run_with_nccl(base, run, 1, 1)) == planned_bytes(base));
  }
}

TEST_CASE("NCCL: gradients in bf16, exchanged in either way, have the bits of one rank", "[nccl]") {
  const TemporaryFolder dir;
  JobSpec base = base_job(Family::llama, dir.path(), DType::bf16, 1);
  base.parallelism.lanes = 8;
  base.parallelism.reduction_dtype = DType::bf16;
  check_mesh(base, dir.path(), "halving", [](JobSpec& j) { j.parallelism.data = 4; });
  check_mesh(base, dir.path(), "dp3", [](JobSpec& j) { j.parallelism.data = 3; });
  check_mesh(base, dir.path(), "direct2", [](JobSpec& j) {
    j.parallelism.data = 3;
    j.parallelism.zero_stage = 2;
    j.parallelism.reduction_algorithm = parallel::ExchangeChoice::direct;
  });
  check_mesh(base, dir.path(), "kept3", [](JobSpec& j) {
    j.parallelism.data = j.parallelism.pipeline = 2;
    j.parallelism.zero_stage = 3;
    j.parallelism.reshard_after_forward = false;
  });
  base.parallelism.data = 4;
  for (const int zero : {1, 3}) {
    base.parallelism.zero_stage = zero;
    base.parallelism.reshard_after_forward = zero < 3;
    const std::string run = fmt::format("{}/memory{}", dir.path(), zero);
    CHECK(taken_bytes(run_with_nccl(base, run, 1, 1)) == planned_bytes(base));
  }
}

TEST_CASE("NCCL: fast reduction on dp 2", "[nccl_fast]") {
  check_fast(Family::llama, DType::f32, 1, 1, 2, 1, false);   // of two parts there is one sum
}
TEST_CASE("NCCL: fast reduction on dp 4, ZeRO-1 and ZeRO-0", "[nccl_fast]") {
  check_fast(Family::gpt2, DType::f32, 1, 1, 4, 1, true);
  check_fast(Family::llama, DType::f32, 1, 1, 4, 0, true);
}
TEST_CASE("NCCL: fast reduction on dp 4, ZeRO-2", "[nccl_fast]") {
  check_fast(Family::gpt2, DType::f32, 1, 1, 4, 2, true);
}
TEST_CASE("NCCL: fast reduction on tp 2, pp 2, dp 2", "[nccl_fast]") {
  check_fast(Family::gpt2, DType::f32, 2, 2, 2, 1, false);
}
