// The memory of a pipeline program: which micro-batch uses which slot and which input buffer of its virtual
// stage, and from when on each receive may use its own. Pure.
#pragma once
#include <cstddef>
#include <vector>

#include "parallel/pipeline.h"

namespace trainctl::parallel {

/// Which slot of its virtual stage each (virtual_stage, micro-batch) uses under a program, and how many slots
/// each virtual stage needs.
struct SlotPlan {
  std::vector<std::vector<int>> slot_of;   ///< [virtual_stage][micro_batch]
  std::vector<int> slots;                  ///< [virtual_stage]
  std::vector<std::vector<int>>
      input_of;   ///< [virtual_stage][micro_batch]: which of the slots + 1 inputs; -1 where none is received
};
SlotPlan plan_slots(const Program& program, int virtual_stages, int micro_batches);

/// Where each receive of a program may begin: posts[i] lists the receives, by their place in the program,
/// that are given to the transport before instruction i runs, in order. An activation's begins as soon as its
/// input is free, a gradient's behind its own forward (before that it cannot be on its way), and never before
/// an earlier receive of its kind, so that messages keep their order. Instruction i itself then only waits
/// for its message.
std::vector<std::vector<size_t>> plan_posts(const Program& program, const SlotPlan& slots);

}  // namespace trainctl::parallel
