#include "runtime/machine/rank_device.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/machine/peak_cache.h"

namespace trainctl {

const char* name_of(DeviceKind kind) { return kind == DeviceKind::cuda ? "cuda" : "cpu"; }

Problem missing_gpus(const JobSpec& job, int gpus, const std::string& problem,
                         std::optional<int> ranks_here) {
  if (gpus == 0) return Problem(fmt::format("device = \"cuda\", but {}", problem));
  const int all = job.mesh().world_size(), ranks = std::min(all, ranks_here.value_or(all)),
            share = job.launcher.ranks_per_gpu;
  const int wanted = (ranks + share - 1) / share;
  if (wanted <= gpus) return Problem::none();
  return Problem(
      fmt::format("{} ranks at launcher.ranks_per_gpu = {} need {} GPUs and this machine has {}; make "
                  "parallelism smaller, or raise "
                  "launcher.ranks_per_gpu to {} (ranks that share a GPU work one after another)",
                  ranks, share, wanted, gpus, (ranks + gpus - 1) / gpus));
}

DeviceKind device_kind(const JobSpec& job, std::optional<int> ranks_here) {
  if (job.device == DeviceChoice::cpu) return DeviceKind::cpu;
  if (job.device == DeviceChoice::cuda) return DeviceKind::cuda;
  const kernels::CudaStatus status = kernels::cuda_status();
  return missing_gpus(job, status.devices, status.problem, ranks_here).is_none() ? DeviceKind::cuda
                                                                               : DeviceKind::cpu;
}

int gpu_of_rank(const JobSpec& job, DeviceKind kind, int local_rank) {
  return kind == DeviceKind::cuda ? local_rank / job.launcher.ranks_per_gpu : -1;
}

void prepare_device_environment() {
  // Streams beyond the hardware's queues share one, and a message that waits for its peer would hold up what stands behind it there.
  // A value that the user has set is kept.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

std::unique_ptr<kernels::Backend> make_rank_backend(const JobSpec& job, DeviceKind kind, int local_rank) {
  if (kind == DeviceKind::cpu) return kernels::make_cpu_backend(job.parallelism.threads_per_rank);
  const char* check = std::getenv("TRAINCTL_CUDA_CHECK");
  return kernels::make_cuda_backend({.device = gpu_of_rank(job, kind, local_rank),
                                     .tf32 = job.tf32,
                                     .check_each_op = check && std::string(check) == "1"});
}

bool uses_nccl(const JobSpec& job) {
  if (job.parallelism.transport != Transport::automatic) return job.parallelism.transport == Transport::nccl;
  return job.launcher.ranks_per_gpu == 1;
}

bool nccl_adds_gradients(const JobSpec& job, DeviceKind kind) {
  return job.parallelism.reduction == GradientSums::fast && job.parallelism.data > 1 && kind == DeviceKind::cuda && uses_nccl(job);
}

namespace {

parallel::NcclSettings nccl_settings(const JobSpec& job) {
  const NcclSpec& spec = job.parallelism.nccl;
  parallel::NcclSettings settings{.bulk_blocks = spec.blocks, .edge_blocks = spec.edge_blocks};
  if (spec.traffic_class >= 0) settings.traffic_class = spec.traffic_class;
  return settings;
}

}  // namespace

std::unique_ptr<parallel::Communicator> make_device_world(const JobSpec& job, DeviceKind kind,
                                                          std::unique_ptr<parallel::Communicator> host, kernels::Backend& backend) {
  // A rank alone sends to itself at most, which needs no library.
  if (kind == DeviceKind::cpu) return host;
  if (host->size() > 1 && uses_nccl(job))
    return parallel::make_nccl_communicator(std::move(host), backend, job.fault_tolerance.collective_timeout_seconds,
                                            parallel::Traffic::none, nccl_settings(job));
  return parallel::make_staged_communicator(std::move(host), backend);
}

std::string run_numerics(const JobSpec& job, DeviceKind kind, const std::string& device_numerics) {
  if (!nccl_adds_gradients(job, kind)) return device_numerics;
  const int version = parallel::nccl_status().version;
  return fmt::format("{} NCCL {}.{}.{}", device_numerics, version / 10000, version / 100 % 100, version % 100);
}

std::string machine_numerics(const JobSpec& job, DeviceKind kind) {
  return run_numerics(job, kind, kind == DeviceKind::cpu ? kernels::cpu_numerics() : kernels::cuda_numerics(0));
}

std::optional<double> rank_peak_flops_per_s(const JobSpec& job, DeviceKind kind) {
  if (kind == DeviceKind::cuda) {
    // A plan for GPUs is made anywhere, also where there is none to ask.
    if (kernels::cuda_status().devices == 0) return std::nullopt;
    return kernels::gpu_peak_flops_per_s(kernels::gpu_facts(0).name, job.compute);
  }
  // Ranks that share cores would measure each other, so this is asked for before they start.
  const int threads = job.parallelism.threads_per_rank;
  FileSystem& fs = real_file_system();
  const auto key = [&](int count) {
    return fmt::format("{}, {}, {} thread(s), {}", host_processor(), kernels::cpu_numerics(), count,
                       name_of(job.compute));
  };
  double peak = remembered_peak(fs, peak_cache_path(), key(threads), real_clock().unix_s(), [&] {
    const auto backend = kernels::make_cpu_backend(threads);
    return kernels::measure_matmul_flops_per_s(*backend, job.compute);
  });
  // Several threads are at least as fast as one, whatever else ran when they were measured.
  for (int count = 1; count < threads; count *= 2)
    peak = std::max(peak, known_peak(fs, peak_cache_path(), key(count)));
  return peak;
}

}  // namespace trainctl
