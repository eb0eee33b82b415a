// Goal: the bits of a run do not depend on how many ranks share experts, nor on how many share sequences of a
// model with experts. Method: tiny models with 8 experts, of which tokens choose 2 or 3, documents on and
// off, thread ranks, against one rank that has them all: losses, gradient norms, validation losses and root
// hash, over expert 2, 4 and 8, data, context, tensor, pipeline, schedules, ZeRO stages, recomputation and
// optimizers; the same of whole experts that tensor ranks share, against the least width. An expert that gets all rows and experts that get none are among them: a router of large
// weights chooses alike for all tokens.
#include <catch2/catch.hpp>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/rank_plan.h"
#include "test/support/described_models.h"
#include "test/support/merged_schedule.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::kMergedSchedule;
using parallel::Schedule;

namespace {

constexpr int64_t kSharedSteps = 4;

JobSpec with_experts(const TemporaryFolder& dir, DType compute) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe_balanced_experts(job.model);
  job.model.moe.num_experts = 8;
  job.compute = compute;
  job.parallelism.lanes = 8;
  job.batch.global_sequences = 16;  // 2 micro-batches a lane
  return job;
}

/// Of 8 experts, in two context blocks, with 2 micro-batches a lane.
JobSpec in_two_blocks(const TemporaryFolder& dir, void (*describe)(ModelSpec&)) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe(job.model);
  job.model.moe.num_experts = 8;
  job.parallelism.lanes = 4;
  job.parallelism.context_blocks = 2;
  job.batch.micro_sequences = 2;
  job.batch.global_sequences = 16;
  return job;
}

struct SharedMeshes {
  const TemporaryFolder& dir;
  int runs = 0;
  ThreadRun run(const JobSpec& job, const std::string& resume_from = "", int64_t steps = kSharedSteps) {
    return run_on_threads(
        job,
        {.dir = dir.path() + "/" + std::to_string(++runs), .resume_from = resume_from, .max_steps = steps});
  }
  void check(const JobSpec& base, const std::vector<TestMesh>& variants) {
    const ThreadRun alone = run(base);
    REQUIRE(alone.losses.size() == size_t(kSharedSteps));
    for (const TestMesh& v : variants) {
      CAPTURE(text_of(v), base.parallelism.tensor);
      const ThreadRun shared = run(on_mesh(base, v));
      check_equal_runs(shared, alone);
    }
  }
};

std::vector<std::pair<int64_t, double>> drops_of(const ThreadRun& run) {
  std::vector<std::pair<int64_t, double>> drops;
  for (const std::string& line : run.lines) {
    const Json of = parse_json(line);
    drops.emplace_back(of["dropped_slots"].get<int64_t>(), of["dropped_share"].get<double>());
  }
  return drops;
}

}  // namespace

TEST_CASE("expert ranks: the same bits at every width", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  meshes.check(with_experts(dir, DType::f32),
               {{.expert = 2, .data = 2, .zero = 0},
                {.expert = 4, .data = 4, .zero = 1},
                {.expert = 8, .data = 8, .zero = 3},
                {.expert = 2, .data = 4, .zero = 2, .recompute = Recompute::full},
                {.expert = 2, .data = 2, .pipeline = 2, .schedule = Schedule::zb_h1}});
  meshes.check(with_experts(dir, DType::bf16),
               {{.expert = 2, .data = 4, .zero = 3, .recompute = Recompute::selective},
                {.expert = 4, .data = 4, .pipeline = 2, .zero = 2}});
}

TEST_CASE("expert ranks: with tensor ranks, of rows and of parts", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = with_experts(dir, DType::bf16);
  job.parallelism.tensor = 2;
  meshes.check(job, {{.expert = 2, .data = 2, .zero = 3}, {.expert = 4, .data = 4, .zero = 1}});
  job.parallelism.sequence_parallel = false;
  meshes.check(job, {{.expert = 2, .data = 2, .zero = 2, .recompute = Recompute::full}});
}

TEST_CASE("expert ranks: a sequence cut over ranks, which share experts or not", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = with_experts(dir, DType::f32);
  job.parallelism.context_blocks = 2;
  meshes.check(job, {{.context = 2},
                     {.expert = 2, .context = 2, .zero = 3},
                     {.expert = 2, .data = 2},
                     {.expert = 4, .context = 2, .data = 2, .zero = 2},
                     {.expert = 2, .context = 2, .data = 2, .pipeline = 2, .recompute = Recompute::full}});
}

TEST_CASE("expert ranks: stages in the middle that pass to four others", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = with_experts(dir, DType::f32);
  describe_shared_expert(job.model);
  job.model.moe.num_experts = job.model.num_layers = 8;
  job.parallelism.context_blocks = 2;
  job.parallelism.lanes = 2;
  meshes.check(
      job, {{.expert = 2, .context = 2, .pipeline = 4, .schedule = Schedule::interleaved},
            {.expert = 2, .data = 2, .pipeline = 2, .zero = 2, .schedule = kMergedSchedule},
            {.expert = 2, .context = 2, .pipeline = 2, .schedule = kMergedSchedule, .virtual_stages = 2}});
}

TEST_CASE("expert ranks: widths that do not divide the lanes, where each rank has all experts", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = with_experts(dir, DType::f32);
  job.model.moe.selection_bias = true, job.model.moe.bias_update_rate = 0.01;
  meshes.check(job, {{.data = 3, .zero = 1},
                     {.data = 5, .zero = 0, .recompute = Recompute::full},
                     {.data = 3, .pipeline = 2, .schedule = Schedule::zb_v},
                     {.expert = 2, .data = 2}});
}

TEST_CASE("expert ranks: biases, groups, an expert for all tokens", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  for (const auto describe : {describe_grouped_experts, describe_biased_products, describe_shared_expert}) {
    const JobSpec job = in_two_blocks(dir, describe);
    meshes.check(job, {{.expert = 2, .data = 2, .zero = 3, .recompute = Recompute::selective},
                       {.expert = 4, .context = 2, .data = 2, .pipeline = 2, .schedule = Schedule::zb_v}});
  }
}

TEST_CASE("expert ranks: lanes of one micro-batch are added as they come, and few are held", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe_biased_products(job.model);
  job.model.moe.num_experts = 8;
  job.parallelism.lanes = job.batch.global_sequences = 16;
  meshes.check(job, {{.expert = 8, .data = 8, .zero = 2},
                     {.expert = 4, .data = 8, .zero = 3, .recompute = Recompute::full},
                     {.expert = 4, .data = 4, .pipeline = 2, .zero = 2, .schedule = Schedule::zb_h1},
                     {.expert = 4, .data = 4, .zero = 1},
                     {.expert = 2, .data = 2, .pipeline = 2, .zero = 0, .schedule = Schedule::zb_v}});
  JobSpec blocks = job;
  blocks.parallelism.context_blocks = 2;
  meshes.check(blocks,
               {{.expert = 4, .data = 4, .zero = 2},
                {.expert = 8, .context = 2, .data = 4, .zero = 3},
                {.expert = 2, .context = 2, .data = 2, .zero = 1, .recompute = Recompute::selective}});
  const auto gradient_bytes = [](const JobSpec& j) {
    const DeviceModel device = device_of_kind(j, DeviceKind::cpu);
    const RankPlan plan = make_rank_plan({j, device, model_tables(j)}, parallel::position_of(j.mesh(), 0));
    return double(plan.memory.sharding.gradients);
  };
  // Of 8 lanes that come at one time a tree of 4 levels holds 4 sums; where lanes grow together, all 8.
  const TestMesh wide{.expert = 8, .data = 8, .zero = 2};
  JobSpec grow_together = job;
  grow_together.parallelism.lanes = 8;
  const JobSpec alone = on_mesh(job, {.data = 8, .zero = 2});
  CAPTURE(gradient_bytes(on_mesh(job, wide)), gradient_bytes(on_mesh(grow_together, wide)),
          gradient_bytes(alone));
  CHECK(gradient_bytes(on_mesh(job, wide)) < 0.75 * gradient_bytes(on_mesh(grow_together, wide)));
  CHECK(gradient_bytes(on_mesh(job, wide)) < 0.75 * gradient_bytes(alone));
}

TEST_CASE("expert ranks: a router that sends all tokens to the same experts", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = with_experts(dir, DType::f32);
  job.model.moe.router = RouterKind::softmax;
  job.model.moe.top_k = 1;
  job.model.moe.aux_loss_coefficient = 0;
  job.schedule.lr = 0.3;  // one expert takes over
  const Json last = parse_json(meshes.run(job).lines.back());
  REQUIRE(last["idle_experts"].get<double>() > 0.5);
  REQUIRE(last["expert_load"].get<double>() > 4);
  meshes.check(job, {{.expert = 4, .data = 4}, {.expert = 8, .data = 8, .zero = 2}});
}

TEST_CASE("expert ranks: experts with a capacity, and in a latent width", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  for (const auto describe : {describe_capped_experts, describe_capped_by_position, describe_narrow_experts,
                              describe_capped_narrow_experts}) {
    const JobSpec job = in_two_blocks(dir, describe);
    meshes.check(job, {{.expert = 2, .data = 2, .zero = 3, .recompute = Recompute::selective},
                       {.expert = 4, .data = 4, .zero = 1, .recompute = Recompute::full},
                       {.expert = 4, .context = 2, .data = 2, .pipeline = 2, .schedule = Schedule::zb_v}});
  }
}

TEST_CASE("expert ranks: what is dropped is counted, the same on every mesh", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = with_experts(dir, DType::f32);
  job.model.moe.router = RouterKind::softmax;
  job.model.moe.top_k = 1;
  job.model.moe.aux_loss_coefficient = 0;
  job.model.moe.capacity_factor = 2;
  job.schedule.lr = 0.3;  // one expert takes over
  const auto alone = drops_of(meshes.run(job));
  REQUIRE(alone.size() == size_t(kSharedSteps));
  const int64_t layers = job.model.num_layers - 1, slots = layers * job.tokens_per_step();
  for (const auto& [dropped, share] : alone) CHECK(share == double(dropped) / double(slots));
  // An expert keeps a quarter of a micro-batch's tokens.
  CHECK(alone.back().first > slots / 2);
  CHECK(alone.back().first <= slots / 4 * 3);
  CHECK(drops_of(meshes.run(on_mesh(job, {.expert = 4, .data = 4, .pipeline = 2, .zero = 2}))) == alone);
  meshes.check(job, {{.expert = 4, .data = 4}, {.expert = 8, .data = 8, .zero = 2}});
  job.model.moe.capacity_factor = 0;
  CHECK_FALSE(parse_json(meshes.run(job).lines.back()).contains("dropped_slots"));
}

TEST_CASE("expert ranks: a capacity that is never reached changes no bit", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = with_experts(dir, DType::bf16);
  const ThreadRun without = meshes.run(job);
  job.model.moe.capacity_factor = 8.0 / 3 * 0.99;  // all tokens but one
  for (const int ranks : {1, 4}) {
    const ThreadRun with = meshes.run(on_mesh(job, {.expert = ranks, .data = ranks}));
    REQUIRE(parse_json(with.lines.back())["dropped_slots"].get<int64_t>() == 0);
    CHECK(with.losses == without.losses);
    CHECK(with.grad_norms == without.grad_norms);
    CHECK(with.root_hash == without.root_hash);
  }
}

TEST_CASE("expert ranks: every optimizer, and moments of a byte", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  for (const OptimizerType type : {OptimizerType::muon, OptimizerType::lion}) {
    JobSpec job = with_experts(dir, DType::f32);
    job.optimizer.type = type;
    job.optimizer.ema_decay = 0.9;
    meshes.check(job, {{.expert = 4, .data = 4, .zero = 3}});
  }
  JobSpec job = with_experts(dir, DType::f32);
  job.optimizer.moments = kernels::Moments::int8;
  meshes.check(job, {{.expert = 2, .data = 4, .zero = 2}});
}

TEST_CASE("expert ranks: a run goes on with the same bits at another width", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec base = with_experts(dir, DType::f32);
  base.model.moe.capacity_factor = 0.9;
  base.model.moe.latent_size = 20;
  const ThreadRun alone = meshes.run(base);
  const ThreadRun begun = meshes.run(on_mesh(base, {.expert = 4, .data = 4, .zero = 3}), "", 2);
  const ThreadRun wider =
      meshes.run(on_mesh(base, {.expert = 2, .data = 2, .pipeline = 2, .zero = 1}), begun.checkpoint, 3);
  const ThreadRun rest = meshes.run(on_mesh(base, {.expert = 8, .data = 8, .zero = 2}), wider.checkpoint);
  CHECK(rest.root_hash == alone.root_hash);
}

/// On two tensor ranks, each of which has whole experts.
JobSpec on_whole_experts(JobSpec job) {
  job.parallelism.tensor = 2;
  job.parallelism.expert_tensor = 1;
  job.parallelism.expert = 2;
  return job;
}

TEST_CASE("whole experts: the same bits at every width, and nearly those of cut ones", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = on_whole_experts(with_experts(dir, DType::f32));
  meshes.check(job, {{.expert = 2, .data = 2, .zero = 0},
                     {.expert = 4, .data = 2, .zero = 1},
                     {.expert = 2, .data = 3, .zero = 1},
                     {.expert = 8, .data = 4, .zero = 3, .recompute = Recompute::full},
                     {.expert = 4, .data = 4, .zero = 2, .recompute = Recompute::selective},
                     {.expert = 4, .data = 2, .pipeline = 2, .schedule = Schedule::zb_h1}});
  const ThreadRun whole = meshes.run(job);
  job.parallelism.expert_tensor = 0, job.parallelism.expert = 1;
  const ThreadRun cut = meshes.run(job);
  for (size_t i = 0; i < size_t(kSharedSteps); ++i) {
    CHECK(whole.losses.at(i) == Approx(cut.losses.at(i)).epsilon(tolerance::kLossWholeExperts));
    CHECK(whole.grad_norms.at(i) == Approx(cut.grad_norms.at(i)).epsilon(tolerance::kLossWholeExperts));
  }
  CHECK(whole.root_hash != cut.root_hash);
  job = on_whole_experts(with_experts(dir, DType::bf16));
  job.parallelism.sequence_parallel = false;
  meshes.check(job,
               {{.expert = 8, .data = 4, .zero = 2}, {.expert = 4, .data = 2, .pipeline = 2, .zero = 3}});
}

TEST_CASE("whole experts: in cut sequences, of all kinds", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  for (const auto describe :
       {describe_grouped_experts, describe_biased_products, describe_shared_expert, describe_narrow_experts,
        describe_capped_experts, describe_capped_narrow_experts}) {
    JobSpec job = on_whole_experts(in_two_blocks(dir, describe));
    job.parallelism.sequence_parallel = false;
    meshes.check(job, {{.expert = 4, .data = 2, .zero = 3, .recompute = Recompute::selective},
                       {.expert = 4, .context = 2, .zero = 1, .recompute = Recompute::full},
                       {.expert = 8, .context = 2, .data = 2, .zero = 2}});
  }
}

TEST_CASE("whole experts: lanes of one micro-batch, every optimizer", "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec job = on_whole_experts(with_experts(dir, DType::f32));
  job.parallelism.lanes = job.batch.global_sequences = 16;
  job.optimizer.type = OptimizerType::muon;
  meshes.check(job, {{.expert = 8, .data = 4, .zero = 2}, {.expert = 4, .data = 4, .zero = 1}});
  job.optimizer.type = OptimizerType::adamw;
  job.optimizer.moments = kernels::Moments::int8;
  meshes.check(job, {{.expert = 4, .data = 4, .zero = 3, .recompute = Recompute::full}});
}

TEST_CASE("whole experts: a run goes on with the same bits at another width, and cut from then on",
          "[bits]") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  const JobSpec base = on_whole_experts(with_experts(dir, DType::f32));
  const ThreadRun alone = meshes.run(base);
  const ThreadRun begun = meshes.run(on_mesh(base, {.expert = 8, .data = 4, .zero = 3}), "", 2);
  const ThreadRun wider =
      meshes.run(on_mesh(base, {.expert = 4, .data = 2, .pipeline = 2, .zero = 1}), begun.checkpoint, 3);
  CHECK(meshes.run(on_mesh(base, {.expert = 2, .data = 4, .zero = 2}), wider.checkpoint).root_hash ==
        alone.root_hash);
  JobSpec cut = on_mesh(base, {.expert = 2, .data = 2});
  cut.parallelism.expert_tensor = 0;
  CHECK(meshes.run(cut, wider.checkpoint).losses.back() ==
        Approx(alone.losses.back()).epsilon(tolerance::kLossWholeExperts));
}

TEST_CASE("whole experts take the memory that the plan says") {
  const TemporaryFolder dir;
  SharedMeshes meshes{dir};
  JobSpec cut = on_mesh(with_experts(dir, DType::bf16), {.expert = 2, .data = 2});
  cut.parallelism.tensor = 2;
  const JobSpec whole = on_mesh(on_whole_experts(with_experts(dir, DType::bf16)), {.expert = 4, .data = 2});
  const ThreadRun of_cut = meshes.run(cut, "", 1), of_whole = meshes.run(whole, "", 1);
  for (size_t rank = 0; rank < of_whole.allocated_bytes.size(); ++rank) {
    const auto planned = [&](const JobSpec& j) {
      return int64_t(rank_memory(j, DeviceKind::cpu, parallel::position_of(j.mesh(), int(rank))).total());
    };
    CHECK(int64_t(of_whole.allocated_bytes[rank]) - int64_t(of_cut.allocated_bytes[rank]) ==
          planned(whole) - planned(cut));
  }
}
