// The state with which a rank begins, in the memory of its node or in a checkpoint.
#pragma once
#include <memory>

#include "ckpt/checkpoint.h"
#include "parallel/sharded_params.h"
#include "runtime/model/params.h"
#include "runtime/train/control/rank_activity.h"
#include "runtime/train/rank.h"

namespace trainctl {

/// Whether the rank loads a state; otherwise it begins anew.
bool loads_state(const RankOptions& options);
/// What a rank loads.
struct WantedState {
  int rank = 0;
  const ParamTable& table;
  const parallel::ShardedParams& params;
};
/// Opens what the rank loads of the state, and of a checkpoint nothing else (ckpt/open_part.h); says so to
/// `activity`. Error(kCheckpoint).
std::unique_ptr<ckpt::Checkpoint> open_start(const RankOptions& options, const WantedState& wanted,
                                             FileSystem& fs, RankActivity& activity);
struct LoadedState {
  int64_t step = 0;
  double seconds = 0;  ///< until all ranks had loaded it
};
/// Writes the event `loaded` where a state was loaded: step, tier, seconds, the bytes that all ranks have
/// loaded from it, and those that they have read from the memory of other nodes for that. Collective over
/// `world`; rank 0 writes.
void report_loaded(const RankOptions& options, const LoadedState& loaded,
                   const parallel::ShardedParams& params, parallel::Communicator& world, Control& control);

}  // namespace trainctl
