// Runs every op of a step once before the first exchange with peers.
//
// CUDA loads a kernel when it is first launched, and loading may wait for everything that the GPU runs. Were that an exchange which
// waits for a peer whose host waits in the same way, neither would go on. (CUDA C++ Programming Guide, "Lazy Loading", on concurrent
// execution.) cuBLASLt loads the kernel of a product by its shape, so only the real shapes will do: the warm-up is the rank's own model
// on its own memory, for two micro-batches, with exchanges that move nothing (parallel/rehearsal.h). An op that the model comes to use
// is in it without being named here.
#pragma once
#include "runtime/model/stage_model.h"

namespace trainctl {

struct WarmUp {
  StageModel& model;
  parallel::ShardedParams& params;
  kernels::Backend& backend;
  int chunks = 1;                      ///< of this rank
  bool split_backward = false;         ///< as in StageModel::Options
  int lanes_per_rank = 1;
  const int32_t *tokens = nullptr, *targets = nullptr;   ///< device [M], any tokens of the vocabulary; null where the rank reads none
  double* losses = nullptr;            ///< host memory, as in Executor::run, for one micro-batch
  std::vector<int64_t> first_chunk;    ///< of each parameter (ChunkGrids)
  int64_t total_chunks = 0;
};

/// The communicators of the model and of the parameters must be rehearsing. Before: the memory as allocated, zero. Afterwards: weights and
/// optimizer state are zero, everything else is whatever a step leaves. Returns once the device is done.
void warm_up(const WarmUp& w);

}  // namespace trainctl
