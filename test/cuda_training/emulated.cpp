// The training tests on the emulated GPU: few steps, streams that run late and in odd orders.
#include "test/cuda_training/gpu_runs.h"
#include "test/support/emulated_gpu/emulated_gpu.h"

namespace trainctl::test {

const Effort& effort() {
  static const Effort little{.golden_steps = 2, .steps = 2, .every_mesh = false};
  return little;
}

void prepare_devices(int devices, uint64_t seed) {
  emulated_gpu::Options options;
  options.queues = emulated_gpu::options_from_environment().queues;
  options.devices.assign(size_t(devices), emulated_gpu::DeviceOptions{});
  options.stream_mode = seed % 2 ? emulated_gpu::StreamMode::lazy : emulated_gpu::StreamMode::random;
  options.seed = seed;
  emulated_gpu::reset(options);
}

}  // namespace trainctl::test
