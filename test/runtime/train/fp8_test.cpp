// Goal: a run whose products are in FP8 keeps its bits on every mesh, under every recomputation, and through
// a stop and a resume; it learns as one in bf16 does; it takes the memory that its plan says. Method: tiny
// models of all kinds of sublayers whose sizes are multiples of 128, thread ranks over meshes against one
// plain rank; all recipes, both formats of gradients, some products kept.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "kernels/host_memory.h"
#include "runtime/model/placement_check.h"
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

constexpr int64_t kFp8Steps = 4;
constexpr Fp8Recipe kAllRecipes[] = {Fp8Recipe::block, Fp8Recipe::tensor, Fp8Recipe::mxfp8, Fp8Recipe::nvfp4};

void fp8_latent(ModelSpec& m) {
  describe_latent(m);
  describe_blocks(m);
  m.head_dim_given = 0;
  m.latent = {.kv_lora_rank = 128,
              .q_lora_rank = 128,
              .qk_nope_head_dim = 64,
              .qk_rope_head_dim = 32,
              .v_head_dim = 64};
}

JobSpec fp8_job(const TemporaryFolder& dir, Family family, void (*describe)(ModelSpec&), Fp8Recipe recipe) {
  JobSpec job = tiny_job(family, dir.path());
  describe(job.model);
  job.compute = DType::bf16;
  job.fp8 = {.recipe = recipe};
  job.parallelism.lanes = 4;
  job.checkpoint.chunk_mib = 0.02;
  return job;
}

/// Notes the random numbers of gradients.
class NoiseWatch final : public kernels::HostDevice {
 public:
  explicit NoiseWatch(std::vector<kernels::Fp4Noise>& seen) : seen_(seen) {}
  std::string name() const override { return device_->name(); }
  std::string numerics() const override { return device_->numerics(); }
  std::unique_ptr<kernels::PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) override {
    return device_->make_packed(n, k, dtype);
  }
  void run(kernels::Stream& stream, const kernels::Op& op) override {
    if (const auto* of = std::get_if<kernels::QuantizeFp4>(&op); of && of->noise.exists)
      seen_.push_back(of->noise);
    device_->run(stream, op);
  }

 private:
  const std::unique_ptr<kernels::Backend> device_ = kernels::make_cpu_backend(1);
  std::vector<kernels::Fp4Noise>& seen_;
};

struct Fp8Meshes {
  const TemporaryFolder& dir;
  int runs = 0;
  ThreadRun run(const JobSpec& job, const std::string& from = "", int64_t steps = kFp8Steps) {
    return run_on_threads(job,
                          {.dir = dir / std::to_string(++runs), .resume_from = from, .max_steps = steps});
  }
  ThreadRun check(const JobSpec& base, const std::vector<TestMesh>& meshes) {
    const ThreadRun plain = run(base);
    REQUIRE(plain.losses.size() == size_t(kFp8Steps));
    for (const TestMesh& m : meshes) {
      CAPTURE(text_of(m), base.parallelism.tensor, word_of(base.fp8.recipe));
      check_equal_runs(run(on_mesh(base, m)), plain);
    }
    return plain;
  }
};

}  // namespace

TEST_CASE("FP8: the same bits on every mesh", "[bits][fp8]") {
  const TemporaryFolder dir;
  Fp8Meshes meshes{dir};
  for (const Fp8Recipe recipe : kAllRecipes) {
    JobSpec job = fp8_job(dir, Family::llama, describe_blocks, recipe);
    meshes.check(job, {{.data = 2, .zero = 0, .recompute = Recompute::selective},
                       {.data = 4, .zero = 3, .recompute = Recompute::full},
                       {.data = 2, .pipeline = 2, .zero = 2, .schedule = Schedule::zb_h1},
                       {.pipeline = 2, .zero = 1, .schedule = Schedule::interleaved, .virtual_stages = 2}});
    job.parallelism.tensor = 2;
    job.fp8.gradients = Fp8Gradients::e5m2;
    meshes.check(job,
                 {{.data = 2, .zero = 3, .recompute = Recompute::selective}, {.pipeline = 2, .zero = 1}});
  }
  JobSpec job = fp8_job(dir, Family::gpt2, describe_blocks, Fp8Recipe::block);
  job.compute = DType::f32;
  job.fp8.keep = {Fp8Kept::first, Fp8Kept::down};
  meshes.check(job, {{.data = 2, .zero = 2, .recompute = Recompute::full}, {.pipeline = 2, .zero = 3}});
}

TEST_CASE("FP8 with latent attention and experts: the same bits on every mesh", "[bits][fp8]") {
  const TemporaryFolder dir;
  Fp8Meshes meshes{dir};
  for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::mxfp8, Fp8Recipe::nvfp4})
    meshes.check(fp8_job(dir, Family::llama, fp8_latent, recipe),
                 {{.data = 2, .zero = 3, .recompute = Recompute::selective}, {.pipeline = 2, .zero = 1}});
  for (const Fp8Recipe recipe : kAllRecipes)
    meshes.check(fp8_job(dir, Family::llama, describe_blocks_of_experts, recipe),
                 {{.expert = 2, .data = 2, .zero = 0, .recompute = Recompute::full},
                  {.expert = 4, .data = 4, .zero = 3, .recompute = Recompute::selective},
                  {.expert = 2, .data = 2, .pipeline = 2, .zero = 2, .schedule = Schedule::zb_h1}});
}

TEST_CASE("FP8 with sequences cut into blocks: the same bits on every number of context ranks",
          "[bits][fp8]") {
  const TemporaryFolder dir;
  Fp8Meshes meshes{dir};
  for (const auto describe : {describe_blocks, describe_blocks_of_experts}) {
    JobSpec job = fp8_job(dir, Family::llama, describe, Fp8Recipe::block);
    job.parallelism.context_blocks = 2;
    job.parallelism.sequence_parallel = false;
    meshes.check(
        job, {{.context = 2, .zero = 0}, {.context = 2, .data = 2, .zero = 3, .recompute = Recompute::full}});
    for (const Fp8Recipe other : {Fp8Recipe::tensor, Fp8Recipe::mxfp8, Fp8Recipe::nvfp4}) {
      job.fp8.recipe = other;
      meshes.check(job, {{.context = 2, .zero = 1}});
    }
    // Sources of experts on ranks of two lanes and two blocks.
    if (job.model.moe.num_experts > 0)
      meshes.check(job,
                   {{.expert = 4, .context = 2, .data = 2, .zero = 0}, {.expert = 4, .data = 4, .zero = 2}});
  }
}

TEST_CASE("NVFP4: gradients are rounded with other numbers for another seed, and step", "[fp8]") {
  const TemporaryFolder dir;
  JobSpec job = fp8_job(dir, Family::llama, describe_blocks, Fp8Recipe::nvfp4);
  job.parallelism.lanes = job.batch.global_sequences = job.batch.micro_sequences = 1;
  job.model.num_layers = 1;
  std::vector<kernels::Fp4Noise> seen;
  for (const uint64_t seed : {1, 2}) {
    job.seed = seed;
    run_on_threads(job, {.dir = dir / std::to_string(seed), .max_steps = 2, .make_backend = [&](int) {
                           return std::make_unique<NoiseWatch>(seen);
                         }});
  }
  // Of each seed and step two operands of qkv, out, up and down.
  REQUIRE(seen.size() == 2 * 2 * 8);
  std::set<std::pair<uint64_t, uint32_t>> different;
  for (const kernels::Fp4Noise& noise : seen) different.insert({noise.tensor, noise.place});
  CHECK(different.size() == seen.size());
}

TEST_CASE("FP8: a run goes on with the same bits on another mesh", "[bits][fp8]") {
  const TemporaryFolder dir;
  Fp8Meshes meshes{dir};
  for (const Fp8Recipe recipe : {Fp8Recipe::block, Fp8Recipe::mxfp8, Fp8Recipe::nvfp4}) {
    const JobSpec base = fp8_job(dir, Family::llama, describe_blocks, recipe);
    const ThreadRun whole = meshes.run(base, "", 6);
    const ThreadRun begun = meshes.run(on_mesh(base, {.data = 2, .zero = 3}), "", 3);
    const ThreadRun rest = meshes.run(on_mesh(base, {.pipeline = 2, .zero = 1, .recompute = Recompute::full}),
                                      begun.checkpoint, 6);
    CHECK(rest.losses == std::vector(whole.losses.begin() + 3, whole.losses.end()));
    CHECK(rest.root_hash == whole.root_hash);
  }
}

TEST_CASE("FP8 is another computation, near that in bf16", "[fp8]") {
  const TemporaryFolder dir;
  Fp8Meshes meshes{dir};
  std::vector<ThreadRun> runs;
  const auto run = [&](const Fp8Spec& fp8) {
    JobSpec job = fp8_job(dir, Family::llama, describe_blocks, Fp8Recipe::none);
    job.fp8 = fp8;
    runs.push_back(meshes.run(job));
    for (size_t step = 0; step < runs[0].losses.size(); ++step)
      CHECK(runs.back().losses[step] == Approx(runs[0].losses[step]).epsilon(tolerance::kLossFp8));
  };
  run({});
  run({.recipe = Fp8Recipe::block});
  run({.recipe = Fp8Recipe::block, .gradients = Fp8Gradients::e5m2});
  run({.recipe = Fp8Recipe::block, .keep = {Fp8Kept::first}});
  run({.recipe = Fp8Recipe::block, .keep = {Fp8Kept::last}});
  run({.recipe = Fp8Recipe::block, .keep = {Fp8Kept::qkv}});
  run({.recipe = Fp8Recipe::block, .keep = {Fp8Kept::out}});
  run({.recipe = Fp8Recipe::block, .keep = {Fp8Kept::up}});
  run({.recipe = Fp8Recipe::block, .keep = {Fp8Kept::down}});
  run({.recipe = Fp8Recipe::mxfp8});
  run({.recipe = Fp8Recipe::nvfp4});
  run({.recipe = Fp8Recipe::nvfp4, .keep = {Fp8Kept::tail}});
  // Gradients come later (2), and few numbers are so small that lines give them other bits (9).
  for (size_t a = 0; a < runs.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      INFO(a << " and " << b);
      CHECK(runs[a].root_hash != runs[b].root_hash);
      CHECK((a == 2 || a == 9 || runs[a].losses[0] != runs[b].losses[0]));
    }
  run({.recipe = Fp8Recipe::block, .keep = {Fp8Kept::first, Fp8Kept::last}});
  CHECK(runs.back().root_hash == runs[0].root_hash);
  run({.recipe = Fp8Recipe::tensor, .keep = {Fp8Kept::qkv, Fp8Kept::out, Fp8Kept::up, Fp8Kept::down}});
  CHECK(runs.back().root_hash == runs[0].root_hash);
}

TEST_CASE("FP8 runs on the reference backend, within rounding of the CPU", "[fp8]") {
  for (const Fp8Recipe recipe : kAllRecipes) {
    const TemporaryFolder dir;
    JobSpec job = fp8_job(dir, Family::llama, describe_blocks, recipe);
    job.compute = DType::f32;
    job.model.num_layers = 1;
    job.parallelism.lanes = job.batch.global_sequences = 1;
    const ThreadRun cpu = run_on_threads(job, {.dir = dir / "cpu", .max_steps = 1});
    const ThreadRun reference =
        run_on_threads(job, {.dir = dir / "reference", .max_steps = 1, .reference_backend = true});
    CHECK(reference.losses[0] == Approx(cpu.losses[0]).epsilon(tolerance::kLossFp8));
    CHECK(reference.grad_norms[0] == Approx(cpu.grad_norms[0]).epsilon(tolerance::kLossFp8));
  }
}

TEST_CASE("FP8: every mesh's step has each sum once", "[fp8]") {
  const TemporaryFolder dir;
  for (const auto describe : {describe_blocks, describe_blocks_of_experts, fp8_latent})
    for (const bool sequence_parallel : {false, true})
      for (const int tensor : {1, 2}) {
        JobSpec job = fp8_job(dir, Family::llama, describe, Fp8Recipe::block);
        job.parallelism.tensor = tensor;
        job.parallelism.data = job.parallelism.pipeline = 2;
        job.parallelism.sequence_parallel = sequence_parallel;
        CAPTURE(sequence_parallel, tensor);
        for (int pp = 0; pp < 2; ++pp)
          CHECK(placement_problem(model_tables(job), job, {.pp = pp}).text_or_empty() == "");
      }
}

TEST_CASE("FP8 takes the memory that its plan says", "[fp8]") {
  const TemporaryFolder dir;
  Fp8Meshes meshes{dir};
  for (const auto describe : {describe_blocks, describe_blocks_of_experts, fp8_latent})
    for (const TestMesh& mesh : {TestMesh{.zero = 1}, TestMesh{.data = 2, .pipeline = 2, .zero = 3}}) {
      CAPTURE(text_of(mesh));
      // Of each rank: what the plan has, and what was taken.
      const auto ranks_of = [&](Fp8Recipe recipe) {
        const JobSpec job = on_mesh(fp8_job(dir, Family::llama, describe, recipe), mesh);
        const ThreadRun run = meshes.run(job, "", 1);
        std::vector<std::pair<int64_t, int64_t>> ranks;
        for (size_t rank = 0; rank < run.allocated_bytes.size(); ++rank) {
          const RankMemory of =
              rank_memory(job, DeviceKind::cpu, parallel::position_of(job.mesh(), int(rank)));
          ranks.emplace_back(int64_t(of.sharding.total() + of.stage.activations + of.stage.scratch()),
                             int64_t(run.allocated_bytes[rank]));
        }
        return ranks;
      };
      const auto bf16 = ranks_of(Fp8Recipe::none), block = ranks_of(Fp8Recipe::block),
                 mxfp8 = ranks_of(Fp8Recipe::mxfp8), nvfp4 = ranks_of(Fp8Recipe::nvfp4);
      for (size_t rank = 0; rank < bf16.size(); ++rank) {
        CHECK(block[rank].first > bf16[rank].first);
        CHECK(mxfp8[rank].first > block[rank].first);  // a weight's lines
        CHECK(nvfp4[rank].first == mxfp8[rank].first);
        for (const auto& fp8 : {block, mxfp8, nvfp4})
          CHECK(fp8[rank].second - bf16[rank].second == fp8[rank].first - bf16[rank].first);
      }
    }
}
