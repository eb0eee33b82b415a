// Goal: training on a GPU is the training that everybody knows: it follows PyTorch's curves, has the same
// bits on every mesh that tensor parallelism leaves alone, twice the same, and takes what the plan says;
// checkpoints go from CPU to GPU and back. Method: whole runs of tiny models on one GPU that all ranks share,
// compared with golden curves, with each other and with the CPU.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "runtime/base/json.h"
#include "runtime/plan/plan.h"
#include "test/cuda_training/gpu_runs.h"
#include "test/support/temporary_folder.h"
#include "test/support/token_sets.h"
#include "test/support/tolerances.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

/// Largest distance of a run's losses from the golden curve, over `steps` steps.
double distance_from_golden(const std::string& name, DType compute, int tp, int pp, int dp, int64_t steps) {
  const TemporaryFolder dir;
  JobSpec job = golden_job(name);
  job.compute = compute;
  job.parallelism.tensor = tp;
  job.parallelism.pipeline = pp;
  job.parallelism.data = dp;
  job.parallelism.lanes = 2;
  job.checkpoint.on_exit = false;
  const ThreadRun run = run_on_gpu(job, dir.path(), steps);
  const auto curve =
      Json::parse(std::ifstream(std::string(TRAINCTL_SOURCE_DIR) + "/test/golden/" + name + "/curve.json"));
  REQUIRE(run.losses.size() == size_t(steps));
  double worst = 0;
  for (size_t i = 0; i < run.losses.size(); ++i) worst = std::max(worst, std::abs(run.losses[i] - curve[i]["loss"].get<double>()));
  return std::isnan(worst) ? INFINITY : worst;
}

struct Variant {
  const char* what;
  void (*change)(JobSpec&);
};

/// All must give the bits of the plain run: one rank, 1f1b, ZeRO-1, no recomputation.
const Variant kVariants[] = {
    {"twice the same run", [](JobSpec&) {}},
    {"dp 2", [](JobSpec& j) { j.parallelism.data = 2; }},
    {"dp 2, ZeRO-0, full recomputation",
     [](JobSpec& j) {
       j.parallelism.data = 2;
       j.parallelism.zero_stage = 0;
       j.recompute = Recompute::full;
     }},
    {"dp 2, ZeRO-3",
     [](JobSpec& j) {
       j.parallelism.data = 2;
       j.parallelism.zero_stage = 3;
     }},
    {"dp 2, ZeRO-3 that keeps weights, directly",
     [](JobSpec& j) {
       j.parallelism.data = 2;
       j.parallelism.zero_stage = 3;
       j.parallelism.reshard_after_forward = false;
       j.parallelism.reduction_algorithm = parallel::ExchangeChoice::direct;
     }},
    {"pp 2, 1f1b", [](JobSpec& j) { j.parallelism.pipeline = 2; }},
    {"selective recomputation, other buckets",
     [](JobSpec& j) {
       j.recompute = Recompute::selective;
       j.parallelism.bucket_mib = 25;
     }},
    {"pp 2, zb-h1, selective recomputation",
     [](JobSpec& j) {
       j.parallelism.pipeline = 2;
       j.parallelism.schedule = Schedule::zb_h1;
       j.recompute = Recompute::selective;
     }},
    {"pp 2, two layers recomputed of all four, which are on the second stage",
     [](JobSpec& j) {
       j.parallelism.pipeline = 2;
       j.parallelism.stage_layers = {0, 4};
       j.recompute = Recompute::first_layers;
       j.recompute_layers = 2;
     }},
    {"pp 2, interleaved",
     [](JobSpec& j) {
       j.parallelism.pipeline = 2;
       j.parallelism.virtual_stages = 2;
       j.parallelism.schedule = Schedule::interleaved;
     }},
    {"pp 2, zb-v",
     [](JobSpec& j) {
       j.parallelism.pipeline = 2;
       j.parallelism.virtual_stages = 2;
       j.parallelism.schedule = Schedule::zb_v;
     }},
    {"dp 2, pp 2, gpipe",
     [](JobSpec& j) {
       j.parallelism.data = j.parallelism.pipeline = 2;
       j.parallelism.schedule = Schedule::gpipe;
     }},
};

enum class Samples { texts, documents };

void check_same_bits(Family family, DType compute, int tp, int every, Samples samples = Samples::texts) {
  const TemporaryFolder dir;
  JobSpec base = tiny_job(family, dir.path());
  if (samples == Samples::documents) train_on(base, dir.path(), many_documents(12));
  base.compute = compute;
  base.parallelism.tensor = tp;
  base.parallelism.lanes = 2;
  base.batch.micro_sequences = 2;   // 2 micro-batches a lane
  prepare_devices(1, 1);
  const ThreadRun plain = run_on_gpu(base, dir.path() + "/plain", effort().steps);
  REQUIRE(plain.losses.size() == size_t(effort().steps));
  const ThreadRun cpu = run_on_threads(base, {.dir = dir.path() + "/cpu", .max_steps = effort().steps});
  for (size_t i = 0; i < plain.losses.size(); ++i)
    CHECK(std::abs(plain.losses[i] - cpu.losses[i]) < tolerance::kLossBf16);
  int number = 0;
  for (const Variant& v : kVariants) {
    if (number++ % every != 0 && !effort().every_mesh) continue;
    JobSpec job = base;
    v.change(job);
    CAPTURE(v.what, name_of(compute), tp);
    prepare_devices(1, uint64_t(number) + 1);
    const ThreadRun run = run_on_gpu(job, dir.path() + "/" + std::to_string(number), effort().steps);
    CHECK(run.losses == plain.losses);
    CHECK(run.grad_norms == plain.grad_norms);
    CHECK(run.root_hash == plain.root_hash);
  }
}

}  // namespace

TEST_CASE("golden curves in f32 and bf16 on one rank", "[golden]") {
  prepare_devices(1, 1);
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) {
    CAPTURE(name);
    CHECK(distance_from_golden(name, DType::f32, 1, 1, 1, effort().golden_steps) < tolerance::kLossGpuF32);
    CHECK(distance_from_golden(name, DType::bf16, 1, 1, 1, effort().golden_steps) < tolerance::kLossBf16);
  }
}

TEST_CASE("golden curves in f32 and bf16 on TP2 PP2 DP2 that share one GPU", "[golden]") {
  prepare_devices(1, 2);
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) {
    CAPTURE(name);
    CHECK(distance_from_golden(name, DType::f32, 2, 2, 2, effort().golden_steps) < tolerance::kLossGpuF32);
    CHECK(distance_from_golden(name, DType::bf16, 2, 2, 2, effort().golden_steps) < tolerance::kLossBf16);
  }
}

TEST_CASE("golden curves in f32 and bf16 on TP4, two ranks for each KV head", "[golden]") {
  prepare_devices(1, 5);
  CHECK(distance_from_golden("llama-tiny", DType::f32, 4, 1, 1, effort().golden_steps) <
        tolerance::kLossGpuF32);
  CHECK(distance_from_golden("llama-tiny", DType::bf16, 4, 1, 2, effort().golden_steps) <
        tolerance::kLossBf16);
}

TEST_CASE("same bits on every mesh of one GPU: gpt2 bf16", "[bits]") { check_same_bits(Family::gpt2, DType::bf16, 1, 1); }
TEST_CASE("same bits on every mesh of one GPU: llama f32, documents kept apart", "[bits]") {
  check_same_bits(Family::llama, DType::f32, 1, 2, Samples::documents);
}
TEST_CASE("same bits on every mesh of one GPU: llama bf16, tp 2, sequence parallel", "[bits]") {
  check_same_bits(Family::llama, DType::bf16, 2, 3);
}
TEST_CASE("same bits on every mesh of one GPU: llama bf16, tp 4 with two KV heads", "[bits]") {
  check_same_bits(Family::llama, DType::bf16, 4, 6);
}

TEST_CASE("a checkpoint of the CPU goes on on the GPU, and one of the GPU on the CPU", "[checkpoint]") {
  prepare_devices(1, 3);
  const TemporaryFolder dir;
  const JobSpec job = tiny_job(Family::llama, dir.path());
  const ThreadRun cpu = run_on_threads(job, {.dir = dir.path() + "/cpu", .max_steps = 4});
  const ThreadRun cpu_half = run_on_threads(job, {.dir = dir.path() + "/cpu-half", .max_steps = 2});
  const ThreadRun gpu_half = run_on_gpu(job, dir.path() + "/gpu-half", 2);
  const ThreadRun gpu_after_cpu = run_on_gpu(job, dir.path() + "/gpu-after-cpu", 4, cpu_half.checkpoint);
  const ThreadRun cpu_after_gpu =
      run_on_threads(job, {.dir = dir.path() + "/cpu-after-gpu", .resume_from = gpu_half.checkpoint, .max_steps = 4});
  REQUIRE(gpu_after_cpu.losses.size() == 2);
  REQUIRE(cpu_after_gpu.losses.size() == 2);
  // f32 on both: a few roundings apart after four steps.
  for (size_t i = 0; i < 2; ++i) {
    CHECK(std::abs(gpu_after_cpu.losses[i] - cpu.losses[i + 2]) < tolerance::kLossFewSteps);
    CHECK(std::abs(cpu_after_gpu.losses[i] - cpu.losses[i + 2]) < tolerance::kLossFewSteps);
  }
}

TEST_CASE("a rank takes the GPU memory that the plan says", "[plan]") {
  prepare_devices(1, 4);
  for (const Family family : {Family::gpt2, Family::llama}) {
    const TemporaryFolder dir;
    JobSpec job = tiny_job(family, dir.path());
    job.compute = DType::bf16;
    job.parallelism.data = 2;
    job.parallelism.pipeline = 2;
    job.parallelism.lanes = 2;
    job.checkpoint.on_exit = false;
    for (const int64_t recomputed : {0, 1, 3}) {
      job.parallelism.stage_layers = recomputed == 1 ? std::vector<int64_t>{3, 1} : std::vector<int64_t>{};
      job.recompute = Recompute::first_layers;
      job.recompute_layers = recomputed;
      CAPTURE(recomputed);
      const ThreadRun run = run_on_gpu(job, "", 1);
      const JobPlan plan = make_plan(job, DeviceKind::cuda);
      size_t planned = 0, taken = 0;
      for (const RankMemory& m : plan.stages)
        planned = std::max(planned, m.total() - m.nccl);   // NCCL takes its own
      for (const size_t bytes : run.allocated_bytes) taken = std::max(taken, bytes);
      CHECK(taken == planned);   // to the byte
    }
  }
}
