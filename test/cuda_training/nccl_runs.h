// Whole training runs of ranks with an emulated GPU each, joined by the emulated NCCL.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/plan/plan.h"
#include "test/cuda_training/gpu_runs.h"
#include "test/support/emulated_gpu/emulated_gpu.h"
#include "test/support/emulated_gpu/emulated_nccl.h"
#include "test/support/test_mesh.h"

namespace trainctl::test {

inline ThreadRunOptions on_nccl(const std::string& dir, int64_t steps, double deadline_s = 600) {
  ThreadRunOptions options;
  options.dir = dir;
  options.max_steps = steps;
  options.deadline_s = deadline_s;
  options.make_backend = [](int rank) { return kernels::make_cuda_backend({.device = rank}); };
  options.make_world = [deadline_s](std::unique_ptr<parallel::Communicator> host, kernels::Backend& backend) {
    return parallel::make_nccl_communicator(std::move(host), backend, deadline_s,
                                            parallel::Traffic::none);  // as a rank does
  };
  return options;
}

inline ThreadRun run_with_nccl(const JobSpec& job, const std::string& dir, int64_t steps, uint64_t seed) {
  prepare_devices(job.mesh().world_size(), seed);
  emulated_gpu::reset_nccl({.seed = seed});
  ThreadRun run = run_on_threads(job, on_nccl(dir, steps));
  // The rehearsal has named every peer of the steps.
  CHECK(emulated_gpu::nccl_late_connections() == 0);
  return run;
}

inline JobSpec base_job(Family family, const std::string& dir, DType compute, int tp) {
  JobSpec job = tiny_job(family, dir);
  job.compute = compute;
  job.parallelism.tensor = tp;
  job.parallelism.lanes = 2;
  return job;
}

/// The same bits as those of a run `plain`, however late streams and messages move.
inline void check_same_run(const JobSpec& job, const ThreadRun& plain, const std::string& dir) {
  for (const uint64_t seed : {1, 2, 4}) {
    CAPTURE(seed);
    const ThreadRun run = run_with_nccl(job, dir + std::to_string(seed), effort().steps, seed);
    check_equal_runs(run, plain);
  }
}

inline void check_mesh(const JobSpec& base, const std::string& dir, const std::string& name,
                       void (*change)(JobSpec&)) {
  CAPTURE(name);
  prepare_devices(1, 1);
  const ThreadRun plain = run_on_gpu(base, dir + "/plain-" + name, effort().steps);
  JobSpec job = base;
  change(job);
  check_same_run(job, plain, dir + "/" + name);
}

/// What a rank launches for the first time behind its first exchange.
inline void check_loaded_early(JobSpec job, const std::string& dir) {
  job.data.val = job.data.train;
  job.eval = {.every_steps = 2, .max_sequences = 2 * job.batch.micro_sequences};
  (void)run_with_nccl(job, dir, 2, 1);
  for (int device = 0; device < job.mesh().world_size(); ++device) {
    const emulated_gpu::FirstLaunches launches = emulated_gpu::first_launches(device);
    CAPTURE(device, launches.kernels.size());
    CHECK(launches.before_exchange > 10);
    for (size_t i = launches.before_exchange; i < launches.kernels.size(); ++i)
      FAIL_CHECK("loaded late: " << launches.kernels[i]);
  }
}

inline size_t planned_bytes(const JobSpec& job) {
  size_t worst = 0;
  for (const RankMemory& m : make_plan(job, DeviceKind::cuda).stages)
    worst = std::max(worst, m.total() - m.nccl);
  return worst;
}
inline size_t taken_bytes(const ThreadRun& run) {
  return *std::max_element(run.allocated_bytes.begin(), run.allocated_bytes.end());
}

}  // namespace trainctl::test
