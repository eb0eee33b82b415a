// What other software does differently from ours in a layer with experts, each from a count of its ops or
// from a measurement of its kernels.
#pragma once
#include <string>

#include "runtime/plan/step_time.h"
#include "runtime/spec/fields/job.h"
#include "scripts/bench/published_rows.h"

namespace trainctl::bench {

/// Replaces what differs in a predicted step of a job whose ranks share experts. `time.parts.work` is of a
/// rank that has its own experts alone, of as many rows.
void use_their_experts(const ExpertStack& stack, const JobSpec& job, const predict::ClusterModel& cluster,
                       StepTime& time);

/// Prints how fast rows of experts are exchanged, published and predicted.
void print_exchanges(const std::string& folder);

}  // namespace trainctl::bench
