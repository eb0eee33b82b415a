// Whole training runs on one GPU, real or emulated: ranks are threads that share it and exchange through host memory.
#pragma once
#include "kernels/device.h"
#include "parallel/communicator.h"
#include "test/support/thread_run.h"

namespace trainctl::test {

/// How much of a long proof this program does: an emulated GPU is some thousand times slower.
struct Effort {
  int64_t golden_steps, steps;   ///< of golden curves; of runs that are compared with each other
  bool every_mesh;
};
const Effort& effort();

/// Sets the device up for a test, where that means something (the emulated GPU: streams that run late, chosen by `seed`).
void prepare_devices(int devices, uint64_t seed);

inline ThreadRunOptions on_one_gpu(std::string dir) {
  ThreadRunOptions options;
  options.dir = std::move(dir);
  options.make_backend = [](int) { return kernels::make_cuda_backend({}); };
  options.make_world = [](std::unique_ptr<parallel::Communicator> host, kernels::Backend& backend) {
    return parallel::make_staged_communicator(std::move(host), backend, 4096);
  };
  return options;
}

inline ThreadRun run_on_gpu(const JobSpec& job, const std::string& dir, int64_t max_steps, const std::string& resume_from = "") {
  ThreadRunOptions options = on_one_gpu(dir);
  options.max_steps = max_steps;
  options.resume_from = resume_from;
  return run_on_threads(job, options);
}

}  // namespace trainctl::test
