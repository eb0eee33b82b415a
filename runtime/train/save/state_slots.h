// The slots for copies of a rank's state in the memory of its node.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/memory_store.h"
#include "parallel/sharded_params.h"
#include "runtime/spec/fields/job.h"
#include "runtime/train/measure/node_ranks.h"

namespace trainctl {

/// What the slots for copies of a rank's state depend on.
struct SlotsWanted {
  MemoryCopies mode;                 ///< checkpoint.memory
  const std::string& memory_folder;  ///< RankOptions::memory_folder
  std::span<const NodeRanks> nodes;  ///< the ranks of each node; empty: one machine
  int rank = 0, ranks = 1;
  uint64_t planned_bytes = 0;  ///< of a rank's host memory without the slots, which it may still take
  size_t tensors = 0;
  uint64_t text_bytes = 0;  ///< ckpt::text_bytes of the state
};

/// What a node has for the slots of its ranks, in bytes.
struct MemoryRoom {
  uint64_t available = 0;  ///< of the machine, now; 0: not known
  uint64_t held = 0;       ///< by slots of an epoch before, which are used again
  uint64_t slots = 0;      ///< of all ranks here
  uint64_t planned = 0;    ///< what these ranks may still take for the training
  bool is_enough() const { return available == 0 || slots + planned <= available + held; }
};

/// The bytes of the slots of ranks `here` that lie in `folder` from an epoch before and are used again:
/// files of the same mesh, with `bytes` bytes each.
uint64_t held_slots(const std::string& folder, const NodeRanks& here, int ranks, uint64_t bytes);

/// Whether something is true on any rank of the run, given whether it is true here. Collective.
using AnyRank = std::function<bool(bool)>;

/// A rank's slots for copies.
struct StateSlots {
  std::unique_ptr<ckpt::NodeMemory> memory;  ///< null: there are none
  int slots = 0;                             ///< 2, 1 or 0; the same on every rank
  std::string why;  ///< why there are not two, one sentence, on a rank that could not get them; else ""
};
/// This rank's slots: two, or one where two have no room on some rank and the job allows one, or none if the
/// job wants none, or if the memory of a machine would get scarce. Error(kIo) if the job insists. Collective.
StateSlots open_slots(const SlotsWanted& wanted, const parallel::ShardedParams& params,
                      const AnyRank& any_rank);

}  // namespace trainctl
