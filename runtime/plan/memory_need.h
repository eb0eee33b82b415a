// What a plan adds up to on one device: the ranks that share a machine's memory or a GPU.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// Bytes that all ranks of a device take together, by purpose.
struct MemoryNeed {
  std::vector<std::pair<std::string, uint64_t>> terms;  ///< largest first
  uint64_t total = 0;
};

/// Of all ranks of the job on one machine: from the worst rank of each stage, so never less than what is
/// taken.
MemoryNeed memory_need(const JobSpec& job, const JobPlan& plan);

/// Of one GPU and the ranks on it.
MemoryNeed gpu_memory_need(const JobSpec& job, const JobPlan& plan);

}  // namespace trainctl
