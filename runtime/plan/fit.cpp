#include "runtime/plan/fit.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "runtime/base/units.h"

namespace trainctl {

Fit fit_of(const JobSpec& job, const JobPlan& plan, const DeviceModel& device) {
  const MemoryCopies copies = job.checkpoint.memory;
  return {device.kind == DeviceKind::cuda ? gpu_memory_need(job, copies, plan)
                                          : memory_need(job.parallelism, copies, plan),
          device.room(job)};
}

double busy_share_of_lanes(const ParallelSpec& p) {
  const int most = parallel::times_of_lanes(int(p.lanes), p.data);
  return double(p.lanes) / (double(most) * p.data);
}

double ranks_on_device(const DeviceUse& use, const DeviceModel& device) {
  const double ranks = use.ranks;
  if (device.kind == DeviceKind::cuda) return ranks / std::ceil(ranks / use.ranks_per_gpu);
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  return std::max(1.0, ranks / std::max(1.0, cores / use.threads_per_rank));
}

std::optional<TimeEstimate> estimate_time(const JobSpec& job, const JobPlan& plan, const DeviceModel& device,
                                          std::optional<double> mfu) {
  if (device.flops_per_s <= 0) return std::nullopt;
  const double ranks = job.mesh().world_size(), steps = double(job.schedule.total_steps);
  TimeEstimate t;
  t.peak_flops_per_s = device.flops_per_s;
  const double sharing = ranks_on_device(job, device);
  double busy = 1;
  t.devices = int(std::ceil(ranks / sharing));
  if (device.kind == DeviceKind::cuda) {
    t.mfu = mfu.value_or(kGpuMfu);
  } else {
    t.mfu = mfu.value_or(kCpuMfu);
    // Ranks that share cores fill each other's pipeline bubbles; others idle as simulated.
    busy = sharing > 1 ? 1.0 : std::max(0.05, 1 - plan.bubble_fraction);
  }
  busy *= busy_share_of_lanes(job.parallelism);
  const double peak = t.peak_flops_per_s * t.devices;
  if (device.cluster && !mfu) {
    t.predicted = predict_step(job, plan, device, *device.cluster, sharing);
    t.step_s = t.predicted->step_s;
    t.mfu = plan.flops_per_step_causal / (peak * t.step_s);
  } else {
    t.step_s = plan.flops_per_step_causal / (t.mfu * peak) / busy;
  }
  t.mfu_full = plan.flops_per_step_full / (peak * t.step_s);
  t.tokens_per_s = double(plan.tokens_per_step) / t.step_s;
  t.run_s = t.step_s * steps;
  t.device_hours = t.run_s * t.devices / kHourS;
  t.tokens = double(plan.tokens_per_step) * steps;
  t.flops = plan.flops_per_step_causal * steps;
  return t;
}

}  // namespace trainctl
