// Runs every op of a step once before the first exchange with peers.
//
// CUDA loads a kernel at its first launch, and loading may wait for all work on the GPU. If that work is an
// exchange with a peer whose host waits in the same way, both wait for each other (CUDA C++ Programming
// Guide, "Lazy Loading", on concurrent execution). cuBLASLt loads the kernel of a product by its shape, so
// the warm-up needs the real shapes: it runs the rank's own model in its own memory, for two micro-batches,
// with exchanges that move nothing (parallel/rehearsal.h). So it also runs every op that the model uses
// later.
#pragma once
#include "runtime/model/stage_model.h"

namespace trainctl {

struct WarmUp {
  StageModel& model;
  parallel::ShardedParams& params;
  kernels::Backend& backend;
  int virtual_stages = 1;                      ///< of this rank
  bool split_backward = false;         ///< as in StageModel::Options
  int lanes = 1, reductions = 1;       ///< of this rank in a step
  int lanes_of_micro_batch = 1;        ///< one for each context block that the rank has
  PerField<const void*> arrays = {};   ///< of a micro-batch, with any tokens of the vocabulary
  double* losses = nullptr;            ///< host memory, as in Executor::run, for one micro-batch
};

/// Runs the warm-up and waits for the device. The communicators of model and parameters must be rehearsing,
/// and all memory must be zero, as allocated. Afterwards weights and optimizer state are zero; other memory
/// has undefined contents.
void warm_up(const WarmUp& w);

}  // namespace trainctl
