// The memory of a pipeline program: the slot and the input buffer of each micro-batch in its virtual stage,
// and the earliest instruction at which each receive may begin. Pure.
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
      input_of;  ///< [virtual_stage][micro_batch]: which of the slots + 1 inputs; -1: of the model's begin
};
SlotPlan plan_slots(const Program& program, int virtual_stages, int micro_batches);

/// When each receive of a program begins: posts[i] lists the receives (indices into the program) that begin
/// before instruction i, in order. The receive of an activation begins as soon as its input buffer is free,
/// that of a gradient after its own forward (it cannot be sent before). No receive begins before an earlier
/// one of its kind, so that messages keep their order; own_edges: and of its virtual stage, each of which has
/// edges of its own (a V). A receive instruction itself only waits for its message.
/// early: false: a receive begins directly before it is waited for.
std::vector<std::vector<size_t>> plan_posts(const Program& program, const SlotPlan& slots,
                                            bool own_edges = false, bool early = true);

}  // namespace trainctl::parallel
