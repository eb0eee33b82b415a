// Goal: tensor ranks may have parts of an expert that are not equally wide, with the same bits on
// every mesh of one tensor width, and with what one rank computes but for rounding. Method: tiny
// models whose experts have widths that no tensor width of the test divides, with biases, beside a
// shared expert, or in a latent width: data, expert, pipeline, ZeRO stages, recomputation and
// optimizers against the least mesh, tensor widths against one rank, a checkpoint of one tensor width
// on another, planned memory against what ranks took.
#include <catch2/catch.hpp>

#include "runtime/plan/plan.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

constexpr int64_t kUnevenSteps = 4;

/// Of two ranks' parts 6 and 7 columns, of four 3, 3, 3 and 4.
void describe_uneven_experts(ModelSpec& m) {
  describe_shared_expert(m);
  m.num_kv_heads = 4;
  m.moe.num_experts = 8;
  m.moe.expert_ffn_size = 13;
}
void describe_uneven_biased_experts(ModelSpec& m) {
  describe_biased_products(m);
  m.moe.num_experts = 8;
  m.moe.expert_ffn_size = 13;
}
void describe_uneven_narrow_experts(ModelSpec& m) {
  describe_uneven_experts(m);
  m.moe.latent_size = 12;
}

JobSpec uneven(const TemporaryFolder& dir, void (*describe)(ModelSpec&), DType compute = DType::f32) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe(job.model);
  job.compute = compute;
  job.parallelism.tensor = 2;
  job.parallelism.lanes = 4;
  return job;
}

struct UnevenMeshes {
  const TemporaryFolder& dir;
  int runs = 0;
  ThreadRun run(const JobSpec& job, const std::string& resume_from = "", int64_t steps = kUnevenSteps) {
    return run_on_threads(
        job,
        {.dir = dir.path() + "/" + std::to_string(++runs), .resume_from = resume_from, .max_steps = steps});
  }
  void check(const JobSpec& base, const std::vector<TestMesh>& variants) {
    const ThreadRun alone = run(base);
    REQUIRE(alone.losses.size() == size_t(kUnevenSteps));
    for (const TestMesh& v : variants) {
      CAPTURE(text_of(v), base.parallelism.tensor);
      check_equal_runs(run(on_mesh(base, v)), alone);
    }
  }
};

}  // namespace

TEST_CASE("experts cut into unequal parts: the same bits on every mesh", "[bits]") {
  const TemporaryFolder dir;
  UnevenMeshes meshes{dir};
  meshes.check(uneven(dir, describe_uneven_experts),
               {{.expert = 2, .data = 2, .zero = 0},
                {.expert = 4, .data = 4, .zero = 3, .recompute = Recompute::full},
                {.expert = 2, .data = 2, .pipeline = 2, .zero = 2, .schedule = Schedule::zb_h1},
                {.expert = 1, .data = 3, .zero = 1, .recompute = Recompute::selective}});
  meshes.check(uneven(dir, describe_uneven_biased_experts, DType::bf16),
               {{.expert = 2, .data = 4, .zero = 3}, {.expert = 2, .data = 2, .pipeline = 2, .zero = 1}});
  JobSpec narrow = uneven(dir, describe_uneven_narrow_experts, DType::bf16);
  narrow.parallelism.sequence_parallel = false;
  meshes.check(narrow, {{.expert = 4, .data = 4, .zero = 2, .recompute = Recompute::full}});
}

TEST_CASE("experts cut into unequal parts: with every optimizer", "[bits]") {
  const TemporaryFolder dir;
  UnevenMeshes meshes{dir};
  JobSpec job = uneven(dir, describe_uneven_experts);
  job.optimizer.moments = kernels::Moments::bf16;  // not int8: E0252
  meshes.check(job, {{.expert = 2, .data = 2, .zero = 1}, {.expert = 1, .data = 4, .zero = 3}});
  job.optimizer.moments = kernels::Moments::f32;
  job.optimizer.type = OptimizerType::muon;
  meshes.check(job, {{.expert = 2, .data = 2, .zero = 0},
                     {.expert = 1, .data = 4, .zero = 2},
                     {.expert = 4, .data = 4, .zero = 3}});
}

TEST_CASE("experts cut into unequal parts: what one rank computes", "[bits]") {
  for (const OptimizerType type : {OptimizerType::adamw, OptimizerType::muon}) {
    const TemporaryFolder dir;
    UnevenMeshes meshes{dir};
    JobSpec job = uneven(dir, describe_uneven_experts);
    job.optimizer.type = type;
    job.parallelism.tensor = 1;
    const ThreadRun one = meshes.run(job);
    for (const int tensor : {2, 4}) {
      CAPTURE(tensor, int(type));
      job.parallelism.tensor = tensor;
      const ThreadRun several = meshes.run(job);
      for (size_t step = 0; step < one.losses.size(); ++step)
        CHECK(several.losses[step] == Approx(one.losses[step]).epsilon(tolerance::kLossOfWidths));
      CHECK(several.grad_norms[0] == Approx(one.grad_norms[0]).epsilon(tolerance::kBlockGradNorm));
    }
  }
}

TEST_CASE("whole experts of a width that tensor ranks do not divide", "[bits]") {
  const TemporaryFolder dir;
  UnevenMeshes meshes{dir};
  JobSpec job = uneven(dir, describe_uneven_experts);
  job.parallelism.expert_tensor = 1;
  job.parallelism.expert = 2;
  meshes.check(job, {{.expert = 4, .data = 2, .zero = 3}, {.expert = 8, .data = 4, .zero = 1}});
}

TEST_CASE("experts cut into unequal parts: a checkpoint of one tensor width on others", "[bits]") {
  const TemporaryFolder dir;
  UnevenMeshes meshes{dir};
  const JobSpec two = uneven(dir, describe_uneven_experts);
  const ThreadRun whole = meshes.run(two);
  const ThreadRun begun = meshes.run(on_mesh(two, {.expert = 2, .data = 2, .zero = 3}), "", 2);
  CHECK(meshes.run(on_mesh(two, {.expert = 4, .data = 4, .zero = 1}), begun.checkpoint).root_hash ==
        whole.root_hash);
  for (const int tensor : {1, 4}) {
    const ThreadRun rest = meshes.run(on_mesh(two, {.tensor = tensor, .data = 2}), begun.checkpoint);
    CHECK(rest.losses.back() == Approx(whole.losses.back()).epsilon(tolerance::kLossOfWidths));
  }
}

TEST_CASE("experts cut into unequal parts take no more memory than the plan says") {
  const TemporaryFolder dir;
  UnevenMeshes meshes{dir};
  const auto job_of = [&](int64_t ffn) {
    JobSpec job = uneven(dir, describe_uneven_experts, DType::bf16);
    job.model.moe.expert_ffn_size = ffn;
    return on_mesh(job, {.expert = 2, .data = 2, .zero = 2});
  };
  const JobSpec even = job_of(12), odd = job_of(13);
  const ThreadRun of_even = meshes.run(even, "", 1), of_odd = meshes.run(odd, "", 1);
  for (size_t rank = 0; rank < of_odd.allocated_bytes.size(); ++rank) {
    const parallel::MeshPosition at = parallel::position_of(odd.mesh(), int(rank));
    const auto planned = [&](const JobSpec& j) {
      return int64_t(rank_memory(j, DeviceKind::cpu, at).total());
    };
    const int64_t taken = int64_t(of_odd.allocated_bytes[rank]) - int64_t(of_even.allocated_bytes[rank]);
    CHECK(taken <= planned(odd) - planned(even));
  }
}
