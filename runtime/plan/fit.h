// Whether a planned job fits on a device, how long it would take there, and which settings would make it fit.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/device_model.h"
#include "runtime/plan/memory_need.h"
#include "runtime/spec/parse.h"

namespace trainctl {

struct Fit {
  MemoryNeed need;    ///< of the ranks that share one device
  uint64_t room = 0;  ///< 0: not known
  bool known() const { return room > 0; }
  bool fits() const { return known() && need.total <= room; }
};
Fit fit_of(const JobSpec& job, const JobPlan& plan, const DeviceModel& device);

/// The share of the peak that a plan assumes where --mfu does not say: of a GPU's data sheet, what well-run
/// jobs report (Llama 3 405B: 38 to 43 %, arXiv:2407.21783, table 4); of a CPU's measured matrix products,
/// what whole steps reach (scripts/bench.sh).
inline constexpr double kGpuMfu = 0.40, kCpuMfu = 0.70;

struct TimeEstimate {
  double mfu = 0, peak_flops_per_s = 0;  ///< assumed share; peak of one device (CPU: of one rank)
  int devices = 1;                       ///< GPUs, or CPU ranks that find cores of their own
  double step_s = 0, tokens_per_s = 0, run_s = 0, device_hours = 0;
  double tokens = 0, flops = 0;  ///< of the whole run
};
/// Nothing where the device's peak is not known. On GPUs the share is that of the whole step, its bubble
/// included.
std::optional<TimeEstimate> estimate_time(const JobSpec& job, const JobPlan& plan, const DeviceModel& device,
                                          std::optional<double> mfu);

/// Settings to add to those given, under which the job was planned and fits.
struct Alternative {
  std::vector<std::string> settings;  ///< "parallelism.tensor=8", as `-s` takes them
  uint64_t total = 0;                 ///< bytes on a device
  int ranks = 1;
  double bubble_fraction = 0;
};

/// Up to `most` alternatives, likely the fastest first: recomputation, ZeRO, smaller micro-batches, bf16
/// and other meshes on as many ranks; where none of these fits, on more GPUs (at most 65,536) or on fewer
/// CPU ranks. Each one was parsed, checked and planned.
std::vector<Alternative> what_fits(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                                   size_t most = 3);

}  // namespace trainctl
