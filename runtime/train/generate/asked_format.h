// The number format in which a trained model is asked to compute.
#pragma once
#include <optional>

#include "runtime/spec/fields/job.h"

namespace trainctl {

/// The job as it computes where a format of weights and products is asked for: all of them in this one, so
/// without the 8-bit products of its training. Without one: as it trained.
inline JobSpec in_format(JobSpec job, std::optional<DType> compute) {
  if (!compute) return job;
  job.compute = *compute;
  job.fp8 = {};
  return job;
}

}  // namespace trainctl
