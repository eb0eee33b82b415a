// DeviceModel: all that plan, preflight and doctor know about a device. Only this header makes one: for this
// machine, for a GPU by its name, or for an amount of memory.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "runtime/machine/rank_device.h"
#include "runtime/model/stage_uses.h"
#include "runtime/predict/cluster.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// Reserve for a rank's CUDA context and the kernels of its libraries, which the plan does not count. It is
/// an assumption, not a measurement.
inline constexpr uint64_t kGpuContextBytes = uint64_t{512} << 20;

struct DeviceModel {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;           ///< "h100", "this machine", the name that the driver reports, "80GiB"
  uint64_t memory_bytes = 0;   ///< for all that runs there: of a GPU, CUDA's contexts included; of a machine,
                               ///< what is available. 0: unknown
  uint64_t total_bytes = 0;    ///< that memory when nothing uses it; 0: unknown
  double flops_per_s =
      0;   ///< peak of a device's (on a CPU: of a rank's) matrix products in the job's precision; 0: unknown
  bool measured = false;      ///< flops_per_s was measured here, not taken from a data sheet
  double link_bytes_per_s = 0;  ///< one way between two devices of a node, by the data sheet; 0: unknown
  bool adds_gradients = false;  ///< the transport between devices can add gradients (Communicator::reduces)
  std::optional<predict::ClusterModel> cluster =
      {};                 ///< what its time is predicted from; nullopt: an assumed MFU
  int ranks_on_node = 0;  ///< aligned runs of so many ranks are on one node (parallel::ranks_on_node); 0: all

  /// What a rank reads ahead, adds up and saves lies in the device's own memory.
  bool is_host() const { return kind == DeviceKind::cpu; }
  /// The bytes that the ranks of the job may use on one such device.
  uint64_t room(const DeviceUse& use) const;
  /// Taken by a rank's process before it has a tensor, of a model of so many parameters, and by ops and
  /// products in addition to their arguments.
  size_t program_bytes(size_t parameters) const;
  size_t workspace_bytes(const ModelTables& tables, const ParallelSpec& parallelism,
                         const parallel::ShardingBytes& optimizer) const;
};

/// A device of which only the kind is known. It suffices to compute the memory that a job needs.
DeviceModel device_of_kind(const DeviceUse& use, DeviceKind kind);

/// All names for device_named, smallest memory first.
std::vector<std::string> device_names();

/// A GPU by its name, or a device of kind `kind` with an amount of memory ("80GiB"). Error(kUsage) for other
/// texts, with the known names, and for a GPU where the job is in f16.
DeviceModel device_named(const std::string& text, const DeviceUse& use, DeviceKind kind);

/// A GPU of which the driver reports these facts; its peak is for products in `precision`. The transport
/// belongs to a job: adds_gradients is false.
DeviceModel device_of_gpu(const kernels::GpuFacts& facts, DType precision, bool tf32 = false);

/// The device of this machine that the job would run on, of several GPUs number `gpu`; memory_bytes = 0 where
/// it wants a GPU and there is none. Measures the peak of a CPU (0.2 s) if `with_peak`.
DeviceModel device_here(const DeviceUse& use, DeviceKind kind, bool with_peak, int gpu = 0);

}  // namespace trainctl
