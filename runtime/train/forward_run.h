// The forward passes of an evaluation: micro-batches shared out over the data-parallel positions, several of
// them at once on a pipeline.
#pragma once
#include <cstdint>
#include <functional>

#include "runtime/model/executor.h"
#include "runtime/train/rank_resources.h"

namespace trainctl {

/// What is computed, and what a rank does before and behind it.
struct ForwardRun {
  int64_t micro_batches = 0;    ///< of all ranks together, at least 1
  int together = 1;             ///< evaluated_together
  TokenFeed* tokens = nullptr;  ///< of a rank that reads tokens, else null
  /// Uploads `count` micro-batches from `first` on. Called where there is a feed.
  std::function<void(int64_t first, int count)> upload;
  /// The `at`-th of those has passed the last local virtual stage; its work is enqueued. May be empty.
  std::function<void(int at)> passed = {};
  /// The work of these micro-batches is done: RankResources::loss_sums has their losses. Called where they are
  /// this rank's own.
  std::function<void(int64_t first, int count)> done;
};

/// Collective.
void run_forward(const ForwardRun& run, RankResources& rank, Executor& executor, RankActivity& activity);

}  // namespace trainctl
