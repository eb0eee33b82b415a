// The memory that a plan needs on one device: the sum over the ranks that share a machine or a GPU.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/spec/fields/job.h"

namespace trainctl {

/// The name of the term of the copies of the state.
inline constexpr const char* kCopiesTerm = "copies of the state";

/// The bytes of all ranks of a device together, by purpose.
struct MemoryNeed {
  std::vector<std::pair<std::string, uint64_t>> terms;  ///< largest first
  uint64_t total = 0;
  uint64_t copies = 0;  ///< of the total: copies of the state in /dev/shm; of a machine only
  bool copies_give_way =
      true;  ///< where they have no room, the job does without them (checkpoint.memory = auto)
  /// In addition to the total: copies of the ranks of another node, whose partner this one is; 0 on one
  /// machine. The caller sets it.
  uint64_t second_copies = 0;

  uint64_t saving = 0;  ///< not of the total: what ranks without copies save through

  uint64_t without_copies() const { return total - copies + saving; }
  /// What the job takes where there is `room` (0: not known): its copies give way, first one of two.
  uint64_t needed(uint64_t room) const {
    if (!copies_give_way || room == 0 || total <= room) return total;
    const uint64_t one_copy = total - copies / 2;
    return one_copy <= room ? one_copy : without_copies();
  }
  bool fits(uint64_t room) const { return needed(room) <= room; }
};

/// The need of all ranks of the plan's job on one machine. It counts each rank like the worst of its stage, so it
/// is never too small. `copies`: checkpoint.memory.
MemoryNeed memory_need(const ParallelSpec& parallelism, MemoryCopies copies, const JobPlan& plan);

/// The need of one GPU with its ranks.
MemoryNeed gpu_memory_need(const DeviceUse& use, MemoryCopies copies, const JobPlan& plan);

}  // namespace trainctl
