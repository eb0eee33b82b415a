// A device that a plan is made for: one that is here, one known by name, or so many bytes of memory.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/spec/fields/job.h"
#include "runtime/machine/rank_device.h"

namespace trainctl {

/// Kept free for a rank's CUDA context and the kernels of its libraries, which are not in the plan: a
/// reserve, not a measurement.
inline constexpr uint64_t kGpuContextBytes = uint64_t{512} << 20;

struct DeviceModel {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;           ///< "h100", "this machine", the name that the driver reports, "80GiB"
  uint64_t memory_bytes = 0;  ///< for all that runs there: of a GPU, CUDA's contexts included; of a machine,
                              ///< what is available. 0: unknown
  double flops_per_s =
      0;  ///< peak of a device's (on a CPU: of a rank's) matrix products in the job's precision; 0: unknown
  bool measured = false;  ///< flops_per_s was measured here, not taken from a data sheet
  /// Bytes for the ranks of the job on one such device.
  uint64_t room(const JobSpec& job) const;
};

/// The names that device_named knows, smallest memory first.
std::vector<std::string> device_names();

/// A GPU by its name, or so much memory ("80GiB") of a device of kind `kind`. Error(kUsage) for anything
/// else, naming what is known.
DeviceModel device_named(const std::string& text, const JobSpec& job, DeviceKind kind);

/// The device of this machine that the job would run on; memory_bytes = 0 where it wants a GPU and there is
/// none. Measures the peak of a CPU (0.2 s) if `with_peak`.
DeviceModel device_here(const JobSpec& job, DeviceKind kind, bool with_peak);

}  // namespace trainctl
