// The device of a rank, and the communicator for its memory. This is the only header that names the kinds of
// devices. What a job asks of them is a DeviceUse, which a JobSpec becomes by itself.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "runtime/base/problem.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

enum class DeviceKind { cpu, cuda };
const char* name_of(DeviceKind kind);

/// What a job asks of the devices of its ranks.
struct DeviceUse {
  DeviceUse(const JobSpec& job);
  DeviceChoice choice;
  int ranks;          ///< of the job
  int ranks_per_gpu;  ///< ranks that share one
  int threads_per_rank;
  DType compute;
  bool tf32;
  Transport transport;
  GradientSums reduction;
  int data;  ///< ranks that add gradients: data-parallel and context
  bool has_stages;
  int streams;  ///< see streams_of_rank
  NcclSpec nccl;
  double collective_timeout_s;
};

/// The spec's `device`, with `auto` decided by this machine: GPUs if this build can use them and there are
/// enough for the ranks on this machine, otherwise the CPU, which alone computes in f16.
///   ranks_here   the number of ranks that may run on this machine; nullopt: all ranks of the job; 0: one GPU
///                is enough
DeviceKind device_kind(const DeviceUse& use, std::optional<int> ranks_here = std::nullopt);

/// GPUs that this process can use.
int gpus_here();

/// The index of the GPU for the rank with index `local_rank` on its machine; -1 on a CPU.
int gpu_of_rank(const DeviceUse& use, DeviceKind kind, int local_rank);

/// None, or why the rank with index `local_rank` cannot have that GPU, where it sees `seen` of them.
Problem unseen_gpu(int gpu, int local_rank, int seen);

/// The PCI bus ids of the GPUs of the first `local_ranks` ranks of a machine, for bind_rank; none on CPUs, or
/// where one cannot be asked. Creates no CUDA context.
std::vector<std::string> gpus_of_ranks(const DeviceUse& use, DeviceKind kind, int local_ranks);

/// The most streams of a rank's device on which work of a step waits for other work, with NCCL: compute, sums
/// and copies, files, and one for each group that moves tensors.
int streams_of_rank(const ParallelSpec& parallelism, bool tied);

/// None, or why pipeline messages over NCCL could wait for each other in a circle.
///   most_connections   CUDA_DEVICE_MAX_CONNECTIONS: hardware queues, which streams share if there are too few
Problem queue_problem(const DeviceUse& use, const std::string& most_connections);

/// Sets environment variables that the CUDA driver reads. Call it before the first CUDA call (device_kind
/// makes one) and before a second thread runs.
void prepare_device_environment();

/// The backend for the rank with index `local_rank` on its machine. Error(kPreflight), one sentence, if the
/// device cannot be used.
std::unique_ptr<kernels::Backend> make_rank_backend(const DeviceUse& use, DeviceKind kind, int local_rank);

/// The communicator of all ranks for device memory. Takes ownership of `host`, the communicator for host
/// memory. On a CPU it is `host` itself. On GPUs it uses NCCL if uses_nccl(use) and there are several
/// ranks, otherwise pinned host memory. Collective. `backend` must outlive it.
std::unique_ptr<parallel::Communicator> make_device_world(const DeviceUse& use, DeviceKind kind,
                                                          std::unique_ptr<parallel::Communicator> host,
                                                          kernels::Backend& backend);

/// The numerics of a run: `device_numerics` (Backend::numerics), and NCCL's version if NCCL adds gradients.
/// Two runs of one spec have the same bits only if their numerics are equal.
std::string run_numerics(const DeviceUse& use, DeviceKind kind, const std::string& device_numerics);
/// run_numerics for the devices of this machine; needs no backend. Error(kPreflight) if there is no such
/// device.
std::string machine_numerics(const DeviceUse& use, DeviceKind kind);

/// The peak FLOP/s of one rank's matrix products: measured on a CPU, from a table by name on a GPU. nullopt
/// if this machine has no GPU, or if its GPU is not in the table; then the ranks measure the peak.
std::optional<double> rank_peak_flops_per_s(const DeviceUse& use, DeviceKind kind);

/// None if `gpus` GPUs are enough for the ranks on this machine; otherwise one sentence: GPUs, ranks, what to
/// do.
///   problem   why no GPU can be used; "": none
Problem missing_gpus(const DeviceUse& use, int gpus, const std::string& problem,
                     std::optional<int> ranks_here = std::nullopt);

/// Whether ranks on GPUs use NCCL: by parallelism.transport if it is given, otherwise if each rank has its
/// own GPU.
bool uses_nccl(const DeviceUse& use);

/// Whether NCCL adds the gradients of data-parallel ranks: parallelism.reduction is fast, there are several
/// data-parallel ranks, and they are on GPUs with NCCL.
bool nccl_adds_gradients(const DeviceUse& use, DeviceKind kind);

}  // namespace trainctl
