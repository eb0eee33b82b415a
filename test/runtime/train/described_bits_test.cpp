// Goal: models that are described, not named, keep the same bits on every mesh, and through a stop and a resume on
// another one.
// Method: two models that between them have every feature of a layer, thread ranks, 6 steps with 4 lanes over dp,
// pp, schedules, ZeRO stages and recomputation: losses, gradient norms and root hash against one plain rank, for
// tensor widths 1 and 2 each; and between the two widths within rounding. Models in turn take a third of the meshes
// each; each model takes all of them in the tier of all tests.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "test/support/described_models.h"
#include "test/support/temporary_folder.h"
#include "test/support/thread_run.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

/// What everything leaves out: norms behind alone, of whole projections, and an activation without a gate.
void describe_others(ModelSpec& m) {
  m.layer.norm_place = NormPlace::post;
  m.layer.qk_norm = QkNorm::projection;
  m.layer.activation = FfnActivation::relu2;
  m.layer.window = 7;
  m.layer.scalars[kernels::HeadScalar::sinks] = true;
  m.layers = {LayerKind::window, LayerKind::full};
  m.position.scaling = {.type = RopeScaling::llama3, .factor = 4, .original_max_seq_len = 8};
}

JobSpec described(const TemporaryFolder& dir, void (*describe)(ModelSpec&), int tensor, DType compute) {
  JobSpec job = tiny_job(Family::llama, dir.path());
  describe(job.model);
  job.compute = compute;
  job.parallelism.tensor = tensor;
  job.parallelism.lanes = 4;
  job.batch.global_sequences = 8;  // 2 micro-batches a lane
  return job;
}

constexpr int64_t kDescribedSteps = 6;

struct Described {
  void (*describe)(ModelSpec&);
  int tensor;
  DType compute;
};
constexpr Described kDescribed[] = {{describe_everything, 1, DType::f32},
                                    {describe_others, 1, DType::bf16},
                                    {describe_experts, 1, DType::bf16},
                                    {describe_balanced_experts, 1, DType::f32},
                                    {describe_grouped_experts, 1, DType::f32},
                                    {describe_biased_products, 1, DType::bf16},
                                    {describe_shared_expert, 1, DType::f32},
                                    {describe_capped_experts, 1, DType::bf16},
                                    {describe_narrow_experts, 1, DType::bf16},
                                    {describe_capped_by_position, 1, DType::f32},
                                    {describe_capped_narrow_experts, 1, DType::f32},
                                    {describe_capped_experts, 2, DType::f32},
                                    {describe_capped_narrow_experts, 2, DType::bf16},
                                    {describe_balanced_experts, 2, DType::bf16},
                                    {describe_grouped_experts, 2, DType::bf16},
                                    {describe_biased_products, 2, DType::f32},
                                    {describe_shared_expert, 2, DType::bf16},
                                    {describe_everything, 2, DType::bf16},
                                    {describe_others, 2, DType::f32}};
constexpr int kTurns = 3;
/// The turn of each mesh: each turn has sharded ZeRO-3, a split backward, every recomputation.
constexpr int kTurnOf[] = {0, 1, 2, 1, 2, 0, 2, 1, 1, 0, 0, 2, 1, 2, 2, 0, 0, 1};

/// On every mesh; with a turn below kTurns on a third of them, each with every recomputation.
void check_meshes(const Described& of, int turn) {
  const TemporaryFolder dir;
  const JobSpec base = described(dir, of.describe, of.tensor, of.compute);
  const ThreadRun plain = run_on_threads(base, {.dir = dir.path() + "/plain", .max_steps = kDescribedSteps});
  REQUIRE(plain.losses.size() == size_t(kDescribedSteps));
  int variant = 0;
  for (const auto& [dp, pp] : {std::pair{2, 1}, {1, 2}, {2, 2}, {4, 1}, {3, 1}})
    for (const int zero : {0, 1, 2, 3}) {
      if (of.tensor * dp * pp > 8 || (zero >= 2 && dp == 3)) continue;
      const int number = variant++;
      if (turn < kTurns && kTurnOf[number] != turn) continue;
      JobSpec job = base;
      job.parallelism.data = dp;
      job.parallelism.pipeline = pp;
      job.parallelism.zero_stage = zero;
      job.parallelism.schedule = pp > 1 && number % 2 ? Schedule::zb_h1 : Schedule::one_f_one_b;
      if (number % 3 == 0) job.recompute = Recompute::full;
      if (number % 3 == 1) job.recompute = Recompute::selective;
      CAPTURE(&of - kDescribed, of.tensor, dp, pp, zero, int(job.recompute),
              parallel::name_of(job.parallelism.schedule), name_of(of.compute));
      const ThreadRun run = run_on_threads(
          job, {.dir = dir.path() + "/" + std::to_string(number), .max_steps = kDescribedSteps});
      CHECK(run.losses == plain.losses);
      CHECK(run.grad_norms == plain.grad_norms);
      CHECK(run.root_hash == plain.root_hash);
    }
}

}  // namespace

TEST_CASE("described models: the same bits on every mesh, each model on a third of them", "[bits]") {
  for (size_t i = 0; i < std::size(kDescribed); ++i) check_meshes(kDescribed[i], int(i) % kTurns);
}
TEST_CASE("described models: the same bits on every mesh", "[bits][all]") {
  for (const Described& of : kDescribed) check_meshes(of, kTurns);
}

TEST_CASE("experts: how evenly they are used is reported, the same on every mesh", "[bits]") {
  const TemporaryFolder dir;
  const auto uses_of = [](const ThreadRun& run) {
    std::vector<std::pair<double, double>> uses;
    for (const std::string& line : run.lines) {
      const Json of = parse_json(line);
      uses.emplace_back(of["expert_load"].get<double>(), of["idle_experts"].get<double>());
    }
    return uses;
  };
  JobSpec job = described(dir, describe_balanced_experts, 1, DType::f32);
  const auto plain = uses_of(run_on_threads(job, {.dir = dir.path() + "/plain", .max_steps = 2}));
  REQUIRE(plain.size() == 2);
  for (const auto& [load, idle] : plain) {
    CHECK((load >= 1 && load <= 2));  // of 6 experts each token has 3
    CHECK((idle >= 0 && idle <= 0.5));
  }
  job.parallelism.pipeline = job.parallelism.data = 2;
  job.recompute = Recompute::full;
  CHECK(uses_of(run_on_threads(job, {.dir = dir.path() + "/mesh", .max_steps = 2})) == plain);
  describe_experts(job.model);
  job.model.moe.num_experts = 2;
  const auto all = uses_of(run_on_threads(job, {.dir = dir.path() + "/all", .max_steps = 2}));
  CHECK(all == std::vector<std::pair<double, double>>{{1, 0}, {1, 0}});  // both are always used
}

TEST_CASE("described models: two tensor ranks compute what one computes", "[bits]") {
  for (const auto describe : {describe_everything, describe_others, describe_balanced_experts,
                              describe_biased_products, describe_shared_expert}) {
    const TemporaryFolder dir;
    const ThreadRun one = run_on_threads(described(dir, describe, 1, DType::f32),
                                         {.dir = dir.path() + "/one", .max_steps = kDescribedSteps});
    for (const bool sequence_parallel : {false, true}) {
      JobSpec job = described(dir, describe, 2, DType::f32);
      job.parallelism.sequence_parallel = sequence_parallel;
      const ThreadRun two = run_on_threads(
          job, {.dir = dir.path() + (sequence_parallel ? "/cut" : "/whole"), .max_steps = kDescribedSteps});
      for (size_t step = 0; step < one.losses.size(); ++step)
        CHECK(two.losses[step] == Approx(one.losses[step]).epsilon(tolerance::kLossOfWidths));
      CHECK(two.grad_norms[0] == Approx(one.grad_norms[0]).epsilon(tolerance::kBlockGradNorm));
    }
  }
}

TEST_CASE("described models: a run goes on with the same bits on another mesh", "[bits]") {
  for (const auto describe : {describe_everything, describe_grouped_experts}) {
    const TemporaryFolder dir;
    const JobSpec base = described(dir, describe, 1, DType::bf16);
    const ThreadRun whole =
        run_on_threads(base, {.dir = dir.path() + "/whole", .max_steps = kDescribedSteps});
    JobSpec job = base;
    job.parallelism.data = 2;
    job.parallelism.zero_stage = 3;
    const ThreadRun begun = run_on_threads(job, {.dir = dir.path() + "/begun", .max_steps = 3});
    job = base;
    job.parallelism.pipeline = 2;
    job.recompute = Recompute::full;
    const ThreadRun rest = run_on_threads(
        job, {.dir = dir.path() + "/rest", .resume_from = begun.checkpoint, .max_steps = kDescribedSteps});
    CHECK(rest.root_hash == whole.root_hash);
  }
}
