// What a rank computes on, and how ranks on that device talk: the one place that knows which devices there are.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

enum class DeviceKind { cpu, cuda };
const char* name_of(DeviceKind kind);

/// The spec's `device`, with `auto` decided by this machine: a GPU where this build can use one and there are enough of them for the
/// `ranks_here` that may run on it, the CPU otherwise. Nothing: all ranks of the job; 0: any GPU is enough.
DeviceKind device_kind(const JobSpec& job, std::optional<int> ranks_here = std::nullopt);

/// Which GPU the rank that is `local_rank`-th on its machine takes; -1 on a CPU.
int gpu_of_rank(const JobSpec& job, DeviceKind kind, int local_rank);

/// What the CUDA driver reads from the environment. Before the first call of CUDA, also before device_kind, and before there are threads.
void prepare_device_environment();

/// The device of the rank that is `local_rank`-th on its machine. Error(kPreflight) in one sentence where it cannot be used.
std::unique_ptr<kernels::Backend> make_rank_backend(const JobSpec& job, DeviceKind kind, int local_rank);

/// The world of device memory over the world of host memory, which it takes over: the same on a CPU; NCCL among ranks that have a GPU
/// each; through pinned host memory otherwise. Collective.
std::unique_ptr<parallel::Communicator> make_device_world(const JobSpec& job, DeviceKind kind,
                                                          std::unique_ptr<parallel::Communicator> host, kernels::Backend& backend);

/// What decides the bits of a run besides its spec: the device's (Backend::numerics), and NCCL's version where NCCL adds gradients.
/// "The same bits" is only said between equal ones.
std::string run_numerics(const JobSpec& job, DeviceKind kind, const std::string& device_numerics);
/// The same of this machine's devices, before any rank has one. Error(kPreflight) where there is no such device.
std::string machine_numerics(const JobSpec& job, DeviceKind kind);

/// FLOP/s of one rank's matrix products at most: measured on a CPU, known by name on a GPU; nothing for a GPU nobody knows, which the
/// ranks measure, and where there is none.
std::optional<double> rank_peak_flops_per_s(const JobSpec& job, DeviceKind kind);

/// "" if this machine has the GPUs that `job` asks for; else one sentence: how many there are, how many ranks, what to do.
std::string missing_gpus(const JobSpec& job, int gpus, const std::string& problem,
                         std::optional<int> ranks_here = std::nullopt);

/// Whether each rank has a GPU of its own and the spec leaves NCCL the choice.
bool uses_nccl(const JobSpec& job);

/// Whether NCCL adds the gradients of data-parallel ranks: the spec asks for it (`reduction`), there are several and NCCL joins them.
bool nccl_adds_gradients(const JobSpec& job, DeviceKind kind);

}  // namespace trainctl
