#include "runtime/model/stage_memory.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl {
namespace stage_memory {
namespace {

void take_slot(Arena& arena, const BlockShape& s, const JobSpec& job, const ChunkUses& uses, bool split, Slot& slot) {
  slot.blocks.resize(uses.blocks.size());
  for (BlockActivations& b : slot.blocks) {
    // What is received has buffers of its own; see use_input.
    if (uses.first || &b != &slot.blocks.front()) b.take_input(arena, s);
    if (!recomputes(job)) b.take_rest(arena, s);
  }
  if (split) {
    slot.gradients.resize(uses.blocks.size());
    for (BlockGradients& g : slot.gradients) g.take(arena, s, true);
  }
  const auto edge = [&] { return arena.take(s.compute, s.local_rows, s.hidden); };
  if (!uses.last) slot.output = edge(), slot.output_gradient = edge();
  if (!uses.first) slot.input_gradient = edge();
  if (uses.first && split) slot.embedding_gradient = arena.take(s.compute, s.rows, s.hidden);
  if (uses.last) {
    slot.final_x = edge();
    slot.final_gradient = edge();
    if (split) {
      slot.final_norm_weight = arena.take(DType::f32, 1, s.hidden);
      slot.final_norm_bias = arena.take(DType::f32, 1, s.hidden);
    }
    slot.final_stats = arena.take(DType::f32, s.local_rows, 2).as<float>();
  }
}

/// Columns between two rows of logits: rows begin on 128 bytes, whatever the vocabulary, or wide loads and fast products could not be used.
int64_t padded_vocab(int64_t v) { return (v + 63) / 64 * 64; }

void take_shared(Arena& arena, const BlockShape& s, const JobSpec& job, const StageUses& uses, bool split, Shared& m) {
  m.block.take(arena, s);
  if (recomputes(job)) m.recomputed.take_rest(arena, s);
  if (job.recompute == Recompute::selective) m.recomputed.take_cheap(arena, s);
  if (!split) m.gradients.take(arena, s, false);
  m.ping = arena.take(s.compute, s.local_rows, s.hidden);
  m.pong = arena.take(s.compute, s.local_rows, s.hidden);
  for (const ChunkUses& chunk : uses.chunks) {
    if (chunk.first && !split) m.embedding_gradient = arena.take(s.compute, s.rows, s.hidden);
    if (!chunk.last) continue;
    const int tp = job.parallelism.tensor;
    // The widest slice of the vocabulary: every tp rank plans the same memory.
    const int64_t v = (job.model.vocab_size + tp - 1) / tp;
    m.logits = arena.take(s.compute, s.rows, padded_vocab(v));
    m.head_input = arena.take(s.compute, s.rows, s.hidden);
    m.head_input_gradient = arena.take(s.compute, s.rows, s.hidden);
    m.stats = arena.take(DType::f32, s.rows, 3).as<float>();
    m.all_stats = arena.take(DType::f32, s.rows * tp, 3).as<float>();
    m.lse = arena.take(DType::f32, 1, s.rows).as<float>();
    m.loss = arena.take(DType::f32, 1, s.rows).as<float>();
  }
}

/// What does not come once more with each micro-batch in flight.
void take_once(Arena& arena, const BlockShape& s, const JobSpec& job, const StageUses& uses,
               const StageModel::Options& options, Memory& m) {
  for (const ChunkUses& chunk : uses.chunks) {
    m.biases.emplace_back(chunk.blocks.size());
    for (BlockBiases& biases : m.biases.back()) biases.take(arena, s);
  }
  take_shared(arena, s, job, uses, options.split_backward, m.shared);
}

}  // namespace

int64_t vocab_rows(const StageUses& uses, const ChunkUses& chunk, const JobSpec& job, int tp_rank, int64_t* begin) {
  const int use = chunk.head >= 0 ? chunk.head : chunk.embedding;
  const parallel::LocalShard shard =
      parallel::local_shard(uses.uses[size_t(use)].layout, job.parallelism.tensor, tp_rank);
  if (begin) *begin = shard.pieces.front().global.row_begin;
  return shard.rows;
}

void take_all(Arena& arena, const JobSpec& job, const StageUses& uses, const StageModel::Options& options, Memory& m) {
  const BlockShape s = block_shape(job);
  m.slots.resize(uses.chunks.size());
  m.inputs.resize(uses.chunks.size());
  for (size_t c = 0; c < uses.chunks.size(); ++c) {
    m.slots[c].resize(size_t(options.slots[c]));
    for (Slot& slot : m.slots[c]) take_slot(arena, s, job, uses.chunks[c], options.split_backward, slot);
    if (!uses.chunks[c].first) m.inputs[c].resize(size_t(options.slots[c]) + 1);
    for (Matrix& input : m.inputs[c]) input = arena.take(s.compute, s.local_rows, s.hidden);
    for (size_t slot = 0; slot < m.slots[c].size() && !uses.chunks[c].first; ++slot) m.slots[c][slot].blocks.front().x = m.inputs[c][slot];
  }
  take_once(arena, s, job, uses, options, m);
}

}  // namespace stage_memory

kernels::ScratchShape scratch_shape(const JobSpec& job, int64_t optimizer_elements, int64_t optimizer_boxes) {
  const BlockShape s = block_shape(job);
  const int64_t tp = job.parallelism.tensor;
  kernels::ScratchShape shape;
  shape.rows = s.rows;
  shape.widest = std::max({s.hidden, s.qkv_cols(), s.up_cols()});
  shape.attention = s.attention();
  shape.embedding_rows = (job.model.vocab_size + tp - 1) / tp;
  shape.embedding_cols = s.hidden;
  shape.optimizer_elements = optimizer_elements;
  shape.optimizer_boxes = optimizer_boxes;
  return shape;
}

StageBytes StageModel::plan(const JobSpec& job, const StageUses& uses, const Options& options) {
  using namespace stage_memory;
  const BlockShape s = block_shape(job);
  const int tp = job.parallelism.tensor;
  StageBytes bytes;
  // The slots of a chunk are alike and every piece begins on 64 bytes, so that one measured slot is all of them.
  for (size_t c = 0; c < uses.chunks.size(); ++c) {
    Arena one;
    Slot slot;
    take_slot(one, s, job, uses.chunks[c], options.split_backward, slot);
    bytes.activations += one.used() * size_t(options.slots[c]);
    Arena input;
    if (!uses.chunks[c].first) input.take(s.compute, s.local_rows, s.hidden);
    bytes.activations += input.used() * (size_t(options.slots[c]) + 1);
  }
  Arena shared;
  Memory unused;
  take_once(shared, s, job, uses, options, unused);
  bytes.scratch = shared.used();
  bytes.scratch += parallel::TensorParallel::scratch_bytes(tp, s.compute, s.rows, s.hidden);
  if (s.family == Family::llama) bytes.scratch += size_t(job.data.seq_len * s.head_dim) * 4;   // the rotary table
  return bytes;
}

}  // namespace trainctl
