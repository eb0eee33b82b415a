// The report of `trainctl plan`: the plan of a job, whether it fits on a device, how long it takes, and
// alternatives that fit.
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
  std::vector<Alternative> alternatives;  ///< empty if the job fits
  std::optional<TimeEstimate> time;
};

/// Plans the job for the device. `mfu`: the MFU to assume; nullopt: the default. Searches alternatives if the
/// job does not fit.
PlanReport make_report(const ParseInput& spec, const JobSpec& job, const DeviceModel& device,
                       std::optional<double> mfu);

/// The report as text and as JSON.
std::string render_plan(const PlanReport& report);
std::string plan_json(const PlanReport& report);

/// Notes on the plan, one sentence each: slow kernels, a pipeline bubble that contradicts the assumed MFU.
std::vector<std::string> plan_notes(const PlanReport& report);

}  // namespace trainctl
