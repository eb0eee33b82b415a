#include "runtime/machine/rank_device.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/device.h"
#include "runtime/base/error.h"
#include "runtime/machine/peak_cache.h"

namespace trainctl {

DeviceUse::DeviceUse(const JobSpec& job)
    : choice(job.device),
      ranks(job.mesh().world_size()),
      ranks_per_gpu(job.launcher.ranks_per_gpu),
      threads_per_rank(job.parallelism.threads_per_rank),
      compute(job.compute),
      tf32(job.tf32),
      transport(job.parallelism.transport),
      reduction(job.parallelism.reduction),
      data(job.parallelism.ranks_of_parameters()),
      has_stages(job.parallelism.pipeline > 1),
      streams(streams_of_rank(job.parallelism, job.model.tie_embeddings)),
      nccl(job.parallelism.nccl),
      collective_timeout_s(job.fault_tolerance.collective_timeout_seconds) {}

const char* name_of(DeviceKind kind) { return kind == DeviceKind::cuda ? "cuda" : "cpu"; }

Problem missing_gpus(const DeviceUse& use, int gpus, const std::string& problem,
                     std::optional<int> ranks_here) {
  if (gpus == 0) return Problem(fmt::format("device = \"cuda\", but {}", problem));
  const int ranks = std::min(use.ranks, ranks_here.value_or(use.ranks)), share = use.ranks_per_gpu;
  const int wanted = (ranks + share - 1) / share;
  if (wanted <= gpus) return Problem::none();
  return Problem(
      fmt::format("{} ranks at launcher.ranks_per_gpu = {} need {} GPUs and this machine has {}; make "
                  "parallelism smaller, or raise "
                  "launcher.ranks_per_gpu to {} (ranks that share a GPU work one after another)",
                  ranks, share, wanted, gpus, (ranks + gpus - 1) / gpus));
}

DeviceKind device_kind(const DeviceUse& use, std::optional<int> ranks_here) {
  if (use.choice == DeviceChoice::cpu) return DeviceKind::cpu;
  if (use.choice == DeviceChoice::cuda) return DeviceKind::cuda;
  if (use.compute == DType::f16) return DeviceKind::cpu;
  const kernels::CudaStatus status = kernels::cuda_status();
  return missing_gpus(use, status.devices, status.problem, ranks_here).is_none() ? DeviceKind::cuda
                                                                                 : DeviceKind::cpu;
}

int gpus_here() { return kernels::cuda_status().devices; }

int gpu_of_rank(const DeviceUse& use, DeviceKind kind, int local_rank) {
  return kind == DeviceKind::cuda ? local_rank / use.ranks_per_gpu : -1;
}

Problem unseen_gpu(int gpu, int local_rank, int seen) {
  if (gpu < seen || seen == 0) return Problem::none();
  return Problem(fmt::format(
      "the rank with local rank {} uses GPU {} of its machine and sees {} GPU(s): the ranks of a machine "
      "must see "
      "all its GPUs, so that NCCL can copy between them; do not give each task GPUs of its own (Slurm's "
      "--gpus-per-task, a cgroup, CUDA_VISIBLE_DEVICES), ask for those of the node (--gpus-per-node)",
      local_rank, gpu, seen));
}

std::vector<std::string> gpus_of_ranks(const DeviceUse& use, DeviceKind kind, int local_ranks) {
  std::vector<std::string> ids;
  const int seen = kind == DeviceKind::cuda ? kernels::cuda_status().devices : 0;
  for (int rank = 0; rank < local_ranks; ++rank) {
    const int gpu = gpu_of_rank(use, kind, rank);
    if (gpu < 0 || gpu >= seen) return {};
    ids.push_back(gpu == gpu_of_rank(use, kind, rank - 1) && rank > 0
                      ? ids.back()
                      : kernels::gpu_facts(gpu, false).pci_bus_id);
  }
  return ids;
}

int streams_of_rank(const ParallelSpec& p, bool tied) {
  int streams = 4;  // compute, the state's copies, tokens, zeros of new memory
  if (p.tensor > 1) ++streams;
  if (p.context > 1) ++streams;
  if (p.ranks_of_parameters() > 1)
    streams += 1 + 2 + 1 + (p.zero_stage == 3 ? 1 : 0);  // sums, moves; gathers
  if (p.expert > 1) streams += 2 + (p.zero_stage == 3 ? 1 : 0);
  if (p.pipeline > 1) streams += std::min(4, 2 * (p.pipeline - 1)) * (p.stage_order().v_shaped ? 2 : 1);
  if (tied && p.stage_order().last_stage() > 0) ++streams;
  return streams;
}

Problem queue_problem(const DeviceUse& use, const std::string& most_connections) {
  const int queues = std::atoi(most_connections.c_str());
  if (!use.has_stages || !uses_nccl(use) || queues <= 0 || queues >= use.streams) return Problem::none();
  return Problem(fmt::format(
      "CUDA_DEVICE_MAX_CONNECTIONS = {} gives a GPU so many queues for the {} streams of a rank: a pipeline "
      "message that waits for its peer would hold up the computation that the peer waits for; unset the "
      "variable, "
      "or set it to 32",
      queues, use.streams));
}

void prepare_device_environment() {
  // Streams beyond the hardware's queues share one, and a message that waits for its peer would hold up what stands behind it there.
  // A value that the user has set is kept.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

std::unique_ptr<kernels::Backend> make_rank_backend(const DeviceUse& use, DeviceKind kind, int local_rank) {
  if (kind == DeviceKind::cpu) return kernels::make_cpu_backend(use.threads_per_rank);
  const int gpu = gpu_of_rank(use, kind, local_rank);
  if (const Problem unseen = unseen_gpu(gpu, local_rank, kernels::cuda_status().devices); !unseen.is_none())
    throw Error(ErrorCode::kPreflight, unseen.text());
  const char* check = std::getenv("TRAINCTL_CUDA_CHECK");
  return kernels::make_cuda_backend(
      {.device = gpu, .tf32 = use.tf32, .check_each_op = check && std::string(check) == "1"});
}

bool uses_nccl(const DeviceUse& use) {
  if (use.transport != Transport::automatic) return use.transport == Transport::nccl;
  return use.ranks_per_gpu == 1;
}

bool nccl_adds_gradients(const DeviceUse& use, DeviceKind kind) {
  return use.reduction == GradientSums::fast && use.data > 1 && kind == DeviceKind::cuda && uses_nccl(use);
}

namespace {

parallel::NcclSettings nccl_settings(const NcclSpec& spec) {
  parallel::NcclSettings settings{.bulk_blocks = spec.blocks, .edge_blocks = spec.edge_blocks};
  if (spec.traffic_class >= 0) settings.traffic_class = spec.traffic_class;
  return settings;
}

}  // namespace

std::unique_ptr<parallel::Communicator> make_device_world(const DeviceUse& use, DeviceKind kind,
                                                          std::unique_ptr<parallel::Communicator> host,
                                                          kernels::Backend& backend) {
  // A rank alone sends to itself at most, which needs no library.
  if (kind == DeviceKind::cpu) return host;
  if (host->size() > 1 && uses_nccl(use)) {
    const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (const Problem queues = queue_problem(use, connections ? connections : ""); !queues.is_none())
      throw Error(ErrorCode::kPreflight, queues.text());
    return parallel::make_nccl_communicator(std::move(host), backend, use.collective_timeout_s,
                                            parallel::Traffic::none, nccl_settings(use.nccl));
  }
  return parallel::make_staged_communicator(std::move(host), backend);
}

std::string run_numerics(const DeviceUse& use, DeviceKind kind, const std::string& device_numerics) {
  if (!nccl_adds_gradients(use, kind)) return device_numerics;
  const int version = parallel::nccl_status().version;
  return fmt::format("{} NCCL {}.{}.{}", device_numerics, version / 10000, version / 100 % 100, version % 100);
}

std::string machine_numerics(const DeviceUse& use, DeviceKind kind) {
  return run_numerics(use, kind,
                      kind == DeviceKind::cpu ? kernels::cpu_numerics() : kernels::cuda_numerics(0));
}

std::optional<double> rank_peak_flops_per_s(const DeviceUse& use, DeviceKind kind) {
  if (kind == DeviceKind::cuda) {
    // A plan for GPUs is made anywhere, also where there is none to ask.
    if (kernels::cuda_status().devices == 0) return std::nullopt;
    return kernels::gpu_peak_flops_per_s(kernels::gpu_facts(0).name, use.compute, use.tf32);
  }
  // Ranks that share cores would measure each other, so this is asked for before they start.
  const int threads = use.threads_per_rank;
  FileSystem& fs = real_file_system();
  const auto key = [&](int count) {
    return fmt::format("{}, {}, {} thread(s), {}", host_processor(), kernels::cpu_numerics(), count,
                       name_of(use.compute));
  };
  double peak = remembered_peak(fs, peak_cache_path(), key(threads), real_clock().unix_s(), [&] {
    const auto backend = kernels::make_cpu_backend(threads);
    return kernels::measure_matmul_flops_per_s(*backend, use.compute);
  });
  // Several threads are at least as fast as one, whatever else ran when they were measured.
  for (int count = 1; count < threads; count *= 2)
    peak = std::max(peak, known_peak(fs, peak_cache_path(), key(count)));
  return peak;
}

}  // namespace trainctl
