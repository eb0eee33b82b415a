// The memory of a rank's part of the model: what each micro-batch in flight holds, and what one micro-batch at a time uses. Laid out by one
// walk, which the plan measures and StageModel places.
#pragma once
#include <vector>

#include "runtime/model/stage_model.h"

namespace trainctl::stage_memory {

using kernels::Matrix;

/// Memory of one micro-batch in flight through one chunk.
struct Slot {
  std::vector<BlockActivations> blocks;
  std::vector<BlockGradients> gradients;   // with split backward
  Matrix output, output_gradient, input_gradient;
  Matrix embedding_gradient;               // [M, C] with split backward
  Matrix final_x, final_gradient;
  Matrix final_norm_weight, final_norm_bias;   // gradients, with split backward
  float* final_stats = nullptr;
};

/// Memory that one micro-batch at a time uses.
struct Shared {
  BlockScratch block;
  BlockActivations recomputed;             // with recomputation: what a slot does not keep
  BlockGradients gradients;                // without split backward
  Matrix ping, pong;                       // gradient between blocks
  Matrix logits, head_input, head_input_gradient, embedding_gradient;
  float *stats = nullptr, *all_stats = nullptr, *lse = nullptr, *loss = nullptr;
};

struct Memory {
  std::vector<std::vector<Slot>> slots;    // [chunk][slot]
  std::vector<std::vector<BlockBiases>> biases;   // [chunk][block]
  std::vector<std::vector<Matrix>> inputs;   // [chunk][input]: of chunks that receive theirs, one more than slots
  Shared shared;
};

inline bool recomputes(const JobSpec& job) { return job.recompute == Recompute::full; }

/// Rows of the vocabulary that this tp rank has of a chunk's head or embedding; begin: the first of them.
int64_t vocab_rows(const StageUses& uses, const ChunkUses& chunk, const JobSpec& job, int tp_rank, int64_t* begin);

/// Lays out all activation memory.
void take_all(Arena& arena, const JobSpec& job, const StageUses& uses, const StageModel::Options& options, Memory& m);

}  // namespace trainctl::stage_memory
