// The burn-in of a rank: the first phase of an attempt whose nodes have not all been tested
// (launcher.burn_in). Each rank of such a node computes on its cores or its GPU; then all ranks learn what
// every rank found.
#pragma once
#include <functional>
#include <memory>

#include "parallel/communicator.h"
#include "runtime/machine/burn_in.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/train/control/rank_activity.h"

namespace trainctl {

struct BurnInRank {
  double seconds = 0;   ///< launcher.burn_in
  double answer_s = 0;  ///< more, after which a device that does not answer is left behind
  int rank = 0, local_rank = 0, local_ranks = 1;
  int gpu = -1;           ///< its device; -1: cores
  bool is_bound = false;  ///< the cores that it may use are its own
  std::function<std::unique_ptr<kernels::Backend>(const BurnInPlace&)> open = {};  ///< null: as ranks have it
};

/// Does nothing where attempt.burn_in is empty. Collective; takes `seconds`, at most `answer_s`
/// more, and no longer than the rank that takes longest. Rank 0 sends the event `burn_in`.
/// Error(kDevice) on a rank that found its own device wrong, Error(kHardware) where a core does not answer,
/// and Error(kPeerLost) on all others then.
void burn_in_phase(const AttemptFile& attempt, const BurnInRank& self, parallel::Communicator& host,
                   Control& control, RankActivity& activity);

}  // namespace trainctl
