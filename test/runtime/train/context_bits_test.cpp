// Goal: a run whose sequences are cut into blocks has the same bits on every number of context ranks,
// together with every other axis, and its loss is that of whole sequences within rounding. Method: tiny
// models that between them have every feature of a layer, thread ranks, a cover of meshes, stages of ZeRO,
// schedules, recomputation, numbers of lanes and of micro-batches: losses, gradient norms, validation losses
// and root hash against one rank with the same blocks.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "runtime/plan/rank_plan.h"
#include "runtime/plan/rank_sizes.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/test_mesh.h"
#include "test/support/thread_run.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::ContextComm;
using parallel::Schedule;

namespace {

constexpr int64_t kCutSteps = 4;

struct CutJob {
  Family family = Family::llama;
  void (*describe)(ModelSpec&) = nullptr;
  DType compute = DType::f32;
  bool documents = false;
  int blocks = 4, tensor = 1;
  int64_t lanes = 4, sequences = 8, micro_sequences = 1;
};

JobSpec cut_job(const CutJob& of, const TemporaryFolder& dir) {
  JobSpec job = tiny_job(of.family, dir.path());
  if (of.describe) of.describe(job.model);
  if (of.documents) train_on(job, dir.path(), many_documents(12));
  job.compute = of.compute;
  job.parallelism.tensor = of.tensor;
  job.parallelism.sequence_parallel = false;
  job.parallelism.context_blocks = of.blocks;
  job.parallelism.lanes = of.lanes;
  job.batch = {.global_sequences = of.sequences, .micro_sequences = of.micro_sequences};
  job.data.val = job.data.train;
  job.eval = {.every_steps = 2, .max_sequences = 8};
  return job;
}

ThreadRun run_cut(const JobSpec& job, const TemporaryFolder& dir, int64_t steps = kCutSteps,
                  const std::string& from = "") {
  static int number = 0;
  return run_on_threads(job,
                        {.dir = dir / std::to_string(++number), .resume_from = from, .max_steps = steps});
}

/// Each mesh against the first.
void check_cut_meshes(const JobSpec& base, const TemporaryFolder& dir, const std::vector<TestMesh>& meshes) {
  const ThreadRun plain = run_cut(on_mesh(base, meshes.front()), dir);
  REQUIRE(plain.losses.size() == size_t(kCutSteps));
  REQUIRE(plain.val_losses.size() == 2);
  for (size_t i = 1; i < meshes.size(); ++i) {
    const TestMesh& m = meshes[i];
    CAPTURE(text_of(m));
    check_equal_runs(run_cut(on_mesh(base, m), dir), plain);
  }
}

const std::vector<TestMesh> kFourBlocks = {
    {.context = 1},
    {.context = 2},
    {.context = 4, .zero = 0},
    {.context = 1, .data = 2, .zero = 3, .recompute = Recompute::full},
    {.context = 2, .data = 2, .zero = 2, .recompute = Recompute::selective},
    {.context = 4, .data = 2, .zero = 3},
    {.context = 1, .pipeline = 2, .schedule = Schedule::zb_h1},
    {.context = 2, .pipeline = 2, .zero = 2, .schedule = Schedule::zb_h1, .recompute = Recompute::full},
    {.context = 4, .pipeline = 2, .zero = 3, .schedule = Schedule::zb_h1},
    {.context = 2, .data = 2, .pipeline = 2, .zero = 0, .recompute = Recompute::selective},
    {.context = 1, .data = 4, .zero = 0}};
const std::vector<TestMesh> kTwoBlocks = {
    {.context = 1},
    {.context = 2, .zero = 2, .recompute = Recompute::full},
    {.context = 1, .data = 2, .zero = 1, .recompute = Recompute::selective},
    {.context = 2, .data = 2, .zero = 3, .schedule = Schedule::gpipe},
    {.context = 2, .data = 2, .pipeline = 2, .zero = 1, .schedule = Schedule::zb_h1},
    {.context = 2, .pipeline = 2, .zero = 1, .schedule = Schedule::interleaved, .virtual_stages = 2},
    {.context = 1, .pipeline = 2, .zero = 1, .schedule = Schedule::interleaved, .virtual_stages = 2}};
/// Of one lane.
const std::vector<TestMesh> kOneLane = {
    {.context = 1},
    {.context = 2, .zero = 3, .recompute = Recompute::selective},
    {.context = 4, .zero = 2, .recompute = Recompute::full},
    {.context = 4, .zero = 1},
    {.context = 1, .pipeline = 2, .zero = 1, .schedule = Schedule::zb_h1}};

/// Of models whose four ranks have whole KV heads.
const std::vector<TestMesh> kExchangedHeads = {
    {.context = 1},
    {.context = 2},
    {.context = 2, .zero = 3, .comm = ContextComm::a2a},
    {.context = 4, .zero = 0, .comm = ContextComm::a2a},
    {.context = 2, .data = 2, .zero = 2, .recompute = Recompute::full, .comm = ContextComm::a2a},
    {.context = 4, .data = 2, .zero = 3, .recompute = Recompute::selective, .comm = ContextComm::a2a},
    {.context = 2, .pipeline = 2, .schedule = Schedule::zb_h1, .comm = ContextComm::a2a},
    {.context = 4,
     .pipeline = 2,
     .zero = 2,
     .schedule = Schedule::zb_h1,
     .recompute = Recompute::selective,
     .comm = ContextComm::a2a}};

/// Everything, with two heads for each KV head.
void describe_cut_heads(ModelSpec& m) {
  describe_everything(m);
  m.num_heads = 8, m.num_kv_heads = 4;
}
/// Nothing behind attention reads what went into it.
void describe_plain_heads(ModelSpec& m) { m.num_kv_heads = 4; }
void describe_expert_heads(ModelSpec& m) {
  describe_balanced_experts(m);
  m.num_kv_heads = 4;
}

/// Norms behind alone, of whole projections, sinks in short windows.
void describe_cut_others(ModelSpec& m) {
  m.layer.norm_place = NormPlace::post;
  m.layer.qk_norm = QkNorm::projection;
  m.layer.activation = FfnActivation::relu2;
  m.layer.window = 7;
  m.layer.scalars[kernels::HeadScalar::sinks] = true;
  m.layers = {LayerKind::window, LayerKind::full};
  m.position.scaling = {.type = RopeScaling::llama3, .factor = 4, .original_max_seq_len = 8};
}

}  // namespace

TEST_CASE("context ranks: the same bits on every mesh", "[bits][context]") {
  for (const CutJob& of :
       {CutJob{.describe = describe_everything, .documents = true},
        CutJob{.describe = describe_cut_others, .compute = DType::bf16, .micro_sequences = 2},
        CutJob{.compute = DType::bf16, .lanes = 8}}) {
    const TemporaryFolder dir;
    CAPTURE(name_of(of.compute), of.documents, of.lanes);
    check_cut_meshes(cut_job(of, dir), dir, kFourBlocks);
  }
  for (const CutJob& of :
       {CutJob{.describe = describe_everything, .compute = DType::bf16, .blocks = 2, .lanes = 2},
        CutJob{.family = Family::gpt2, .documents = true, .blocks = 2, .lanes = 2}}) {
    const TemporaryFolder dir;
    CAPTURE(name_of(of.compute), of.documents, of.lanes);
    check_cut_meshes(cut_job(of, dir), dir, kTwoBlocks);
  }
  const TemporaryFolder dir;
  check_cut_meshes(cut_job({.family = Family::gpt2, .compute = DType::bf16, .lanes = 1, .sequences = 4}, dir),
                   dir, kOneLane);
}

TEST_CASE("context ranks: the same bits with each feature of a layer", "[bits][context]") {
  for (const DescribedModel& model : described_models()) {
    const TemporaryFolder dir;
    CAPTURE(model.name);
    JobSpec job = cut_job(
        {.describe = model.describe, .compute = DType::bf16, .blocks = 2, .lanes = 1, .sequences = 2}, dir);
    job.eval = {};
    job.checkpoint.on_exit = false;  // the norms of two steps say enough
    const ThreadRun alone = run_on_threads(job, {.dir = "", .max_steps = 2});
    REQUIRE(alone.losses.size() == 2);
    check_equal_runs(run_on_threads(on_mesh(job, {.context = 2}), {.dir = "", .max_steps = 2}), alone);
  }
}

TEST_CASE("context ranks: the same bits on every mesh of two tensor ranks", "[bits][context]") {
  for (const bool sequence_parallel : {false, true}) {
    const TemporaryFolder dir;
    CAPTURE(sequence_parallel);
    JobSpec job = cut_job({.describe = sequence_parallel ? describe_cut_others : describe_everything,
                           .compute = sequence_parallel ? DType::f32 : DType::bf16,
                           .documents = true,
                           .blocks = 2,
                           .tensor = 2,
                           .lanes = 2},
                          dir);
    job.parallelism.sequence_parallel = sequence_parallel;
    // Ranks that cut rows have one block each.
    check_cut_meshes(job, dir,
                     {{.context = sequence_parallel ? 2 : 1},
                      {.context = 2, .zero = 0, .recompute = Recompute::selective},
                      {.context = 2, .data = 2, .zero = 3},
                      {.context = 2, .pipeline = 2, .zero = 2, .schedule = Schedule::zb_h1}});
  }
}

TEST_CASE("context ranks that exchange heads: the same bits as those that gather keys", "[bits][context]") {
  for (const CutJob& of :
       {CutJob{.describe = describe_cut_heads, .compute = DType::bf16, .documents = true},
        CutJob{.describe = describe_plain_heads, .micro_sequences = 2},
        CutJob{.describe = describe_more_latent, .compute = DType::bf16, .documents = true},
        CutJob{.describe = describe_latent}, CutJob{.family = Family::gpt2, .compute = DType::bf16}}) {
    const TemporaryFolder dir;
    CAPTURE(name_of(of.compute), of.documents, of.micro_sequences);
    check_cut_meshes(cut_job(of, dir), dir, kExchangedHeads);
  }
}

TEST_CASE("context ranks that exchange heads: tensor ranks and experts", "[bits][context]") {
  const TemporaryFolder dir;
  for (const auto describe : {describe_cut_heads, describe_expert_heads}) {
    JobSpec job =
        cut_job({.describe = describe, .documents = true, .blocks = 2, .tensor = 2, .lanes = 2}, dir);
    check_cut_meshes(
        job, dir,
        {{.context = 1},
         {.context = 2, .zero = 0, .recompute = Recompute::selective, .comm = ContextComm::a2a},
         {.context = 2, .data = 2, .zero = 3, .comm = ContextComm::a2a},
         {.expert = describe == describe_expert_heads ? 2 : 1, .context = 2, .comm = ContextComm::a2a}});
  }
}

TEST_CASE("context ranks: optimizers, averages, moments and what gradients are reduced in",
          "[bits][context]") {
  const TemporaryFolder dir;
  const JobSpec base = cut_job({.blocks = 2, .lanes = 2, .sequences = 4}, dir);
  std::vector<JobSpec> jobs(4, base);
  jobs[0].optimizer.type = OptimizerType::muon, jobs[0].optimizer.ema_decay = 0.9;
  jobs[1].optimizer.moments = kernels::Moments::int8, jobs[1].parallelism.threads_per_rank = 2;
  jobs[2].parallelism.reduction_dtype = DType::bf16, jobs[2].parallelism.bucket_mib = 0.004;
  jobs[3].optimizer.type = OptimizerType::lion, jobs[3].model.tie_embeddings = true;
  for (const JobSpec& job : jobs) {
    CAPTURE(&job - jobs.data());
    check_cut_meshes(job, dir,
                     {{.context = 1}, {.context = 2, .zero = 3}, {.context = 2, .data = 2, .pipeline = 2}});
  }
}

TEST_CASE("context ranks: weights of targets", "[bits][context]") {
  const TemporaryFolder dir;
  JobSpec job = cut_job({.lanes = 2}, dir);
  std::mt19937 random(5);
  std::vector<TokenDocument> documents;
  for (int i = 0; i < 30; ++i) documents.push_back({random_text(random, 50)});
  write_megatron(dir / "set", documents);
  std::vector<uint8_t> weights(1500);
  for (uint8_t& weight : weights) weight = uint8_t(random() % 4);
  write_loss(dir / "set", weights);
  DataSource source;
  source.path = dir / "set";
  job.data.train = job.data.val = {source};
  job.data.loss = TargetLoss::weights;
  job.data.documents = Documents::mask;
  check_cut_meshes(job, dir,
                   {{.context = 1}, {.context = 4, .zero = 2}, {.context = 2, .data = 2, .pipeline = 2}});
}

TEST_CASE("context ranks: a run goes on with the same bits on another number of them", "[bits][context]") {
  const TemporaryFolder dir;
  const JobSpec base =
      cut_job({.describe = describe_everything, .compute = DType::bf16, .documents = true}, dir);
  const ThreadRun whole = run_cut(base, dir);
  const ThreadRun begun = run_cut(on_mesh(base, {.context = 4, .zero = 3}), dir, 2);
  const ThreadRun rest =
      run_cut(on_mesh(base, {.context = 2, .data = 2, .pipeline = 2}), dir, kCutSteps, begun.checkpoint);
  CHECK(rest.root_hash == whole.root_hash);
}

TEST_CASE("context ranks: a run goes on with the same bits with exchanged heads", "[bits][context]") {
  const TemporaryFolder dir;
  const JobSpec base =
      cut_job({.describe = describe_cut_heads, .compute = DType::bf16, .documents = true}, dir);
  const ThreadRun whole = run_cut(base, dir);
  const ThreadRun gathered = run_cut(on_mesh(base, {.context = 2, .data = 2, .zero = 2}), dir, 1);
  const ThreadRun exchanged = run_cut(on_mesh(base, {.context = 4, .zero = 3, .comm = ContextComm::a2a}), dir,
                                      3, gathered.checkpoint);
  const ThreadRun rest = run_cut(on_mesh(base, {.context = 2, .pipeline = 2, .comm = ContextComm::a2a}), dir,
                                 kCutSteps, exchanged.checkpoint);
  CHECK(rest.root_hash == whole.root_hash);
}

TEST_CASE("context ranks: the loss is that of whole sequences", "[bits][context]") {
  for (const bool documents : {false, true})
    for (const auto describe : {describe_everything, describe_cut_others}) {
      const TemporaryFolder dir;
      CAPTURE(documents);
      JobSpec job = cut_job({.describe = describe, .documents = documents}, dir);
      const ThreadRun cut = run_cut(on_mesh(job, {.context = 2}), dir);
      job.parallelism.context_blocks = 1;
      const ThreadRun whole = run_cut(job, dir);
      CHECK(cut.root_hash != whole.root_hash);
      for (size_t step = 0; step < whole.losses.size(); ++step) {
        CHECK(cut.losses[step] == Approx(whole.losses[step]).epsilon(tolerance::kLossOfWidths));
        CHECK(cut.grad_norms[step] == Approx(whole.grad_norms[step]).epsilon(tolerance::kGradient));
      }
    }
}

TEST_CASE("context ranks: a rank holds the memory that its plan says", "[context]") {
  const TemporaryFolder dir;
  // What the devices of ranks hold beyond what their plans say of state, activations, scratch and tokens.
  const auto beyond_plan = [&](const JobSpec& job) {
    const ThreadRun run = run_cut(job, dir, 2);
    const DeviceModel device = device_of_kind(job, DeviceKind::cpu);
    std::vector<int64_t> beyond;
    for (int rank = 0; rank < job.mesh().world_size(); ++rank) {
      const RankPlan plan =
          make_rank_plan({job, device, model_tables(job)}, parallel::position_of(job.mesh(), rank));
      const RankMemory& m = plan.memory;
      beyond.push_back(
          int64_t(run.allocated_bytes[size_t(rank)]) -
          int64_t(m.sharding.total() + m.stage.activations + m.stage.scratch() +
                  token_bytes(plan.batch, plan.sequences, job.data.seq_len / job.parallelism.context)));
    }
    return beyond;
  };
  JobSpec whole = cut_job({.compute = DType::bf16, .documents = true, .blocks = 1}, dir);
  const int64_t of_whole = beyond_plan(whole).at(0);
  const JobSpec base = cut_job({.compute = DType::bf16, .documents = true, .lanes = 2}, dir);
  for (const TestMesh& m :
       {TestMesh{}, TestMesh{.context = 2, .zero = 0}, TestMesh{.context = 4, .zero = 3},
        TestMesh{.context = 2, .data = 2, .zero = 2, .recompute = Recompute::full},
        TestMesh{.context = 2, .zero = 0, .comm = ContextComm::a2a},
        TestMesh{
            .context = 2, .data = 2, .zero = 2, .recompute = Recompute::full, .comm = ContextComm::a2a}}) {
    CAPTURE(text_of(m));
    for (const int64_t beyond : beyond_plan(on_mesh(base, m))) CHECK(beyond == of_whole);
  }
}
