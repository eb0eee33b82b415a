// Goal: ranks with a GPU each, joined by NCCL, train to the same bits as one rank, however late streams and messages move; and when a
// rank is lost, the others learn of it in time.
// Method: the real NCCL communicator over emulated devices and an emulated NCCL, lazy and random streams, several seeds; the bits of a
// plain run on one device are the measure.
#include <catch2/catch.hpp>

#include "test/cuda_training/gpu_runs.h"
#include "test/support/emulated_gpu/emulated_nccl.h"

using namespace trainctl;
using namespace trainctl::test;
using parallel::Schedule;

namespace {

ThreadRun run_with_nccl(const JobSpec& job, const std::string& dir, int64_t steps, uint64_t seed, double deadline_s = 60) {
  prepare_devices(job.mesh().world_size(), seed);
  emulated_gpu::reset_nccl({.seed = seed});
  ThreadRunOptions options;
  options.dir = dir;
  options.max_steps = steps;
  options.deadline_s = deadline_s;
  options.make_backend = [](int rank) { return kernels::make_cuda_backend({.device = rank}); };
  options.make_world = [deadline_s](std::unique_ptr<parallel::Communicator> host, kernels::Backend& backend) {
    return parallel::make_nccl_communicator(std::move(host), backend, deadline_s);
  };
  return run_on_threads(job, options);
}

JobSpec base_job(Family family, const std::string& dir, DType compute, int tp) {
  JobSpec job = tiny_job(family, dir);
  job.compute = compute;
  job.parallelism.tensor = tp;
  job.parallelism.lanes = 2;
  return job;
}

void check_mesh(const JobSpec& base, const std::string& dir, const std::string& name, void (*change)(JobSpec&)) {
  CAPTURE(name);
  prepare_devices(1, 1);
  const ThreadRun plain = run_on_gpu(base, dir + "/plain-" + name, effort().steps);
  JobSpec job = base;
  change(job);
  for (const uint64_t seed : {1, 2, 4}) {
    CAPTURE(seed);
    const ThreadRun run = run_with_nccl(job, dir + "/" + name + std::to_string(seed), effort().steps, seed);
    CHECK(run.losses == plain.losses);
    CHECK(run.grad_norms == plain.grad_norms);
    CHECK(run.root_hash == plain.root_hash);
  }
}

}  // namespace

TEST_CASE("NCCL: dp 2 has the bits of one rank", "[nccl]") {
  const TempDir dir;
  check_mesh(base_job(Family::llama, dir.path(), DType::bf16, 1), dir.path(), "dp2", [](JobSpec& j) { j.parallelism.data = 2; });
}

TEST_CASE("NCCL: pp 2 and its schedules have the bits of one rank", "[nccl]") {
  const TempDir dir;
  const JobSpec base = base_job(Family::gpt2, dir.path(), DType::f32, 1);
  check_mesh(base, dir.path(), "1f1b", [](JobSpec& j) { j.parallelism.pipeline = 2; });
  check_mesh(base, dir.path(), "interleaved", [](JobSpec& j) {
    j.parallelism.pipeline = 2;
    j.parallelism.virtual_stages = 2;
    j.parallelism.schedule = Schedule::interleaved;
  });
}

TEST_CASE("NCCL: tp 2, pp 2, dp 2 has the bits of tp 2 alone", "[nccl]") {
  const TempDir dir;
  check_mesh(base_job(Family::llama, dir.path(), DType::bf16, 2), dir.path(), "mesh",
             [](JobSpec& j) { j.parallelism.data = j.parallelism.pipeline = 2; });
}
