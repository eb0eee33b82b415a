// The memory that a plan needs on one device: the sum over the ranks that share a machine or a GPU.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// The bytes of all ranks of a device together, by purpose.
struct MemoryNeed {
  std::vector<std::pair<std::string, uint64_t>> terms;  ///< largest first
  uint64_t total = 0;
  uint64_t copies = 0;  ///< of the state in /dev/shm, in addition; of a machine only
  /// Likewise, of the ranks of another node, whose partner this one is; 0 on one machine. The caller sets it.
  uint64_t second_copies = 0;
};

/// The need of all ranks of the job on one machine. It counts each rank like the worst of its stage, so it is
/// never too small.
MemoryNeed memory_need(const JobSpec& job, const JobPlan& plan);

/// The need of one GPU with its ranks.
MemoryNeed gpu_memory_need(const JobSpec& job, const JobPlan& plan);

}  // namespace trainctl
