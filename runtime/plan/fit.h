// Decides whether a planned job fits on a device, and estimates its duration.
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/plan/device_model.h"
#include "runtime/plan/memory_need.h"
#include "runtime/plan/step_time.h"

namespace trainctl {

struct Fit {
  MemoryNeed need;    ///< memory of all ranks on one device
  uint64_t room = 0;  ///< memory of the device for these ranks, in bytes; 0: not known
  bool known() const { return room > 0; }
  uint64_t needed() const { return need.needed(room); }
  bool fits() const { return known() && need.fits(room); }
};
Fit fit_of(const JobSpec& job, const JobPlan& plan, const DeviceModel& device);

/// The assumed MFU of a device whose speed is not known, if --mfu is not given. For GPUs, relative to the
/// data sheet: what well-run jobs report (Llama 3 405B: 38 to 43 %, arXiv:2407.21783, table 4). For CPUs,
/// relative to measured matrix products: what whole steps reach (scripts/bench.sh).
inline constexpr double kGpuMfu = 0.40, kCpuMfu = 0.70;

struct TimeEstimate {
  double mfu = 0, peak_flops_per_s = 0;  ///< of causal attention; peak of one device (CPU: of one rank)
  double mfu_full = 0;                   ///< as if attention were full
  std::optional<StepTime> predicted;     ///< nullopt: mfu is assumed
  int devices = 1;                       ///< GPUs, or CPU ranks with their own cores
  double step_s = 0, tokens_per_s = 0, run_s = 0, device_hours = 0;
  double tokens = 0, flops = 0;  ///< totals of the run
};
/// The share of their time in which data-parallel ranks compute, as all wait for those that have most lanes:
/// 1 where the width divides the lanes.
double busy_share_of_lanes(const ParallelSpec& parallelism);
/// So many ranks take turns on one device of a plan: a GPU, or a rank's share of this machine's cores.
double ranks_on_device(const DeviceUse& use, const DeviceModel& device);
/// Predicted (step_time.h) where the device's speed is known and no MFU is given; else from an MFU that is
/// given or assumed. nullopt if the device's peak is not known. On GPUs an MFU is that of a whole step with
/// its pipeline bubble.
std::optional<TimeEstimate> estimate_time(const JobSpec& job, const JobPlan& plan, const DeviceModel& device,
                                          std::optional<double> mfu);

}  // namespace trainctl
