// What `trainctl plan` says: the plan of a job, whether it fits on a device, how long it takes there, and
// what would fit.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/fit.h"
#include "runtime/plan/plan.h"

namespace trainctl {

struct PlanReport {
  JobSpec job;
  JobPlan plan;
  DeviceModel device;
  Fit fit;
  std::vector<Alternative> alternatives;  ///< of a job that does not fit
  std::optional<TimeEstimate> time;
};

/// Plans the job for the device; `mfu`: the share of the peak to assume. Searches alternatives where it
/// does not fit.
PlanReport make_report(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                       std::optional<double> mfu);

/// For people, and as JSON.
std::string render_plan(const PlanReport& report);
std::string plan_json(const PlanReport& report);

/// What a reader of the plan should know beyond its numbers, one sentence each: slow kernels, a bubble that
/// the assumed MFU cannot hold.
std::vector<std::string> plan_notes(const PlanReport& report);

}  // namespace trainctl
