#include "runtime/model/stage_model.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"

namespace trainctl {

using kernels::Matrix;

namespace {

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

bool recomputes(const JobSpec& job) { return job.recompute == Recompute::full; }

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

int64_t vocab_rows(const StageUses& uses, const ChunkUses& chunk, const JobSpec& job, int tp_rank, int64_t* begin) {
  const int use = chunk.head >= 0 ? chunk.head : chunk.embedding;
  const parallel::LocalShard shard =
      parallel::local_shard(uses.uses[size_t(use)].layout, job.parallelism.tensor, tp_rank);
  if (begin) *begin = shard.pieces.front().global.row_begin;
  return shard.rows;
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

/// Lays out all activation memory.
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

std::vector<float> rope_table(const JobSpec& job) {
  const int64_t d = job.model.head_dim(), half = d / 2;
  std::vector<float> table(size_t(job.data.seq_len * d));
  for (int64_t t = 0; t < job.data.seq_len; ++t)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = double(t) * std::pow(job.model.rope_theta, -2.0 * double(i) / double(d));
      table[size_t(t * d + i)] = float(std::cos(angle));
      table[size_t(t * d + half + i)] = float(std::sin(angle));
    }
  return table;
}

}  // namespace

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

struct StageModel::Impl {
  const JobSpec job;
  const StageUses uses;
  const Options options;
  parallel::ShardedParams& params;
  parallel::TensorParallel& tp;
  kernels::Backend& backend;
  kernels::Stream& stream;
  BlockShape shape;
  std::unique_ptr<kernels::Buffer> memory_buffer, tp_scratch, rope_buffer;
  Memory memory;
  BlockContext context;
  std::vector<std::vector<Block>> blocks;   // [chunk][block]
  std::vector<std::vector<bool>> stale;     // [chunk][block]: its weights are not packed since they changed
  bool head_stale = true;
  std::unique_ptr<kernels::PackedWeight> head;

  Impl(const JobSpec& j, StageUses u, Options o, parallel::ShardedParams& p, parallel::TensorParallel& t,
       kernels::Backend& b, kernels::Stream& s)
      : job(j), uses(std::move(u)), options(std::move(o)), params(p), tp(t), backend(b), stream(s), shape(block_shape(job)),
        context{shape, backend, stream, params, tp, memory.shared.block, nullptr, !options.split_backward} {
    Arena measure;
    Memory unused;
    take_all(measure, job, uses, options, unused);
    memory_buffer = backend.allocate(measure.used());
    Arena place(memory_buffer->data());
    take_all(place, job, uses, options, memory);
    tp_scratch = backend.allocate(parallel::TensorParallel::scratch_bytes(tp.size(), shape.compute, shape.rows, shape.hidden));
    tp.set_scratch(tp_scratch->data());
    if (job.model.family == Family::llama) {
      const std::vector<float> table = rope_table(job);
      rope_buffer = backend.allocate(table.size() * 4);
      backend.copy_to_device(stream, rope_buffer->data(), table.data(), table.size() * 4);
      stream.synchronize();   // the table on the host ends here
      context.cos_sin = static_cast<const float*>(rope_buffer->data());
    }
    for (const ChunkUses& chunk : uses.chunks) {
      const std::vector<BlockBiases>& biases = memory.biases[blocks.size()];
      blocks.emplace_back();
      for (size_t b = 0; b < chunk.blocks.size(); ++b) blocks.back().emplace_back(chunk.blocks[b], context, biases[b]);
      stale.emplace_back(chunk.blocks.size(), true);
      if (chunk.last) head = backend.make_packed(params.weight(chunk.head).rows, shape.hidden, shape.compute);
    }
  }

  Slot& slot(int chunk, int index) { return memory.slots[size_t(chunk)][size_t(index)]; }
  const ChunkUses& chunk_uses(int chunk) const { return uses.chunks[size_t(chunk)]; }

  int64_t vocab_begin(const ChunkUses& chunk) const {
    int64_t begin = 0;
    vocab_rows(uses, chunk, job, tp.rank(), &begin);
    return begin;
  }

  // ---- forward ----------------------------------------------------------------------------------------

  void embed(const ChunkUses& chunk, Slot& s, const int32_t* tokens) {
    const Matrix x = s.blocks.front().x;
    const Matrix partial = tp.cuts_rows() ? memory.shared.block.partial : x;
    backend.embedding_forward(stream, tokens, params.weight(chunk.embedding), vocab_begin(chunk), partial);
    tp.leave(partial, x);
    if (chunk.position >= 0)
      backend.add_position(stream, params.weight(chunk.position), tp.first_local_row(shape.rows), shape.seq_len, x);
  }

  void forward(int c, int index, const MicroBatch& mb, bool train, double* loss) {
    const kernels::Range range(backend, "F", mb.index, c);
    const ChunkUses& chunk = chunk_uses(c);
    Slot& s = slot(c, index);
    if (chunk.first) {
      params.await(std::max(chunk.embedding, chunk.position) + 1);
      embed(chunk, s, mb.tokens);
    }
    Matrix mid, delta;
    for (size_t b = 0; b < s.blocks.size(); ++b) {
      refresh(c, b);
      BlockActivations a = activations(s, b);
      delta = blocks[size_t(c)][b].forward(context, a, mid, delta);
      mid = a.mid;
      if (recomputes(job) && b + 1 < s.blocks.size()) {
        // The next block overwrites the shared `mid`: hand it over in the next block's own input.
        backend.copy(stream, mid, s.blocks[b + 1].x);
        backend.add(stream, delta, s.blocks[b + 1].x);
        mid = delta = Matrix{};
      }
    }
    if (!chunk.last) {
      backend.copy(stream, mid, s.output);
      backend.add(stream, delta, s.output);
      return;
    }
    head_forward(chunk, s, mid, delta, mb, train, loss);
  }

  void refresh(int c, size_t b) {
    if (!stale[size_t(c)][b]) return;
    params.await(chunk_uses(c).blocks[b].end);
    blocks[size_t(c)][b].pack(context);
    stale[size_t(c)][b] = false;
  }
  void refresh_head(const ChunkUses& chunk) {
    if (!head_stale) return;
    params.await(std::max({chunk.head, chunk.final_norm_weight, chunk.final_norm_bias}) + 1);
    backend.pack(stream, params.weight(chunk.head), *head);
    head_stale = false;
  }

  /// The record of block b: what the slot keeps, and in shared memory what is recomputed.
  BlockActivations activations(Slot& s, size_t b) {
    const BlockActivations& shared = memory.shared.recomputed;
    BlockActivations a = recomputes(job) ? shared : s.blocks[b];
    a.x = s.blocks[b].x;
    if (job.recompute == Recompute::selective) {
      a.norm1 = shared.norm1, a.norm2 = shared.norm2;
      if (shape.gated()) a.act = shared.act;
    }
    return a;
  }

  void final_norm(const ChunkUses& chunk, Slot& s, Matrix mid, Matrix delta) {
    Shared& m = memory.shared;
    const Matrix y = tp.cuts_rows() ? m.block.normed : m.head_input;
    backend.norm_forward(stream, shape.norm(), mid, delta, vector_weight(params, chunk.final_norm_weight),
                         vector_weight(params, chunk.final_norm_bias), shape.norm_eps, s.final_x, y, s.final_stats);
    tp.enter(y, m.head_input);
  }

  void head_forward(const ChunkUses& chunk, Slot& s, Matrix mid, Matrix delta, const MicroBatch& mb, bool train,
                    double* loss) {
    Shared& m = memory.shared;
    refresh_head(chunk);
    final_norm(chunk, s, mid, delta);
    const int64_t v = params.weight(chunk.head).rows, begin = vocab_begin(chunk);
    const Matrix logits = m.logits.columns(0, v);
    const int32_t* targets = mb.targets;
    backend.linear_forward(stream, m.head_input, *head, {}, logits);
    backend.cross_entropy_stats(stream, logits, targets, begin, m.stats);
    const float* stats = m.stats;
    if (tp.size() > 1) {
      parallel::all_gather(tp.comm(), stream, m.stats, m.all_stats, size_t(shape.rows) * 12);
      stats = m.all_stats;
    }
    backend.cross_entropy_combine(stream, stats, tp.size(), shape.rows, m.lse, m.loss);
    backend.sum(stream, m.loss, shape.rows, loss);
    if (train) {
      backend.cross_entropy_backward(stream, logits, targets, begin, m.lse, options.loss_scale);
      backend.linear_backward_input(stream, logits, *head, m.head_input_gradient);
      const Matrix dy = tp.leave(m.head_input_gradient, s.final_gradient);
      if (dy.data != s.final_gradient.data) backend.copy(stream, dy, s.final_gradient);
      backend.linear_backward_weight(stream, logits, m.head_input, params.gradient(chunk.head, mb.lane), {},
                                     !mb.first_of_lane);
      if (mb.last_of_lane) params.lane_done(chunk.head, chunk.head + 1, mb.lane);
    }
  }

  // ---- backward ---------------------------------------------------------------------------------------

  BlockGradients& gradients(Slot& s, size_t b) {
    return options.split_backward ? s.gradients[b] : memory.shared.gradients;
  }

  void backward_input(int c, int index, const MicroBatch& mb) {
    const kernels::Range range(backend, options.split_backward ? "B" : "B+W", mb.index, c);
    const ChunkUses& chunk = chunk_uses(c);
    Slot& s = slot(c, index);
    const bool fused = !options.split_backward;
    Matrix d = s.output_gradient, other = memory.shared.ping;
    if (chunk.last) {
      d = memory.shared.pong;
      const auto gradient = [&](int use, const Matrix& waiting) {
        return fused ? vector_gradient(params, use, mb.lane) : use < 0 ? Matrix{} : waiting;
      };
      backend.norm_backward(stream, shape.norm(), s.final_gradient, s.final_x, vector_weight(params, chunk.final_norm_weight),
                            s.final_stats, {}, d, gradient(chunk.final_norm_weight, s.final_norm_weight),
                            gradient(chunk.final_norm_bias, s.final_norm_bias), fused && !mb.first_of_lane);
      if (fused) final_weight(chunk, s, mb);
    }
    for (size_t b = s.blocks.size(); b-- > 0;) {
      BlockActivations a = activations(s, b);
      if (recomputes(job)) blocks[size_t(c)][b].recompute(context, a);
      const Matrix din = b == 0 && !chunk.first ? s.input_gradient : other;
      blocks[size_t(c)][b].backward_input(context, a, gradients(s, b), d, din, mb.lane, mb.first_of_lane);
      if (fused) block_weight(c, b, s, a, mb);
      other = din.data == memory.shared.ping.data ? memory.shared.pong : memory.shared.ping;
      d = din;
    }
    if (!chunk.first) return;
    Matrix full = fused ? memory.shared.embedding_gradient : s.embedding_gradient;
    if (tp.cuts_rows())
      tp.enter(d, full);
    else if (fused)
      full = d;
    else
      backend.copy(stream, d, full);
    if (fused) embedding_weight(chunk, full, mb);
  }

  void backward_weight(int c, int index, const MicroBatch& mb) {
    if (!options.split_backward) return;
    const kernels::Range range(backend, "W", mb.index, c);
    const ChunkUses& chunk = chunk_uses(c);
    Slot& s = slot(c, index);
    if (chunk.last) final_weight(chunk, s, mb);
    for (size_t b = s.blocks.size(); b-- > 0;) {
      BlockActivations a = activations(s, b);
      block_weight(c, b, s, a, mb);
    }
    if (chunk.first) embedding_weight(chunk, s.embedding_gradient, mb);
  }

  void block_weight(int c, size_t b, Slot& s, BlockActivations& a, const MicroBatch& mb) {
    const BlockUses& u = chunk_uses(c).blocks[b];
    if (job.recompute == Recompute::selective) blocks[size_t(c)][b].recompute_cheap(context, a);
    blocks[size_t(c)][b].backward_weight(context, a, gradients(s, b), mb.lane, mb.first_of_lane);
    if (mb.last_of_lane) params.lane_done(u.begin, u.end, mb.lane);
  }
  void final_weight(const ChunkUses& chunk, Slot& s, const MicroBatch& mb) {
    if (options.split_backward) {
      accumulate(context, s.final_norm_weight, vector_gradient(params, chunk.final_norm_weight, mb.lane), mb.first_of_lane);
      accumulate(context, s.final_norm_bias, vector_gradient(params, chunk.final_norm_bias, mb.lane), mb.first_of_lane);
    }
    if (!mb.last_of_lane) return;
    const int end = std::max(chunk.final_norm_weight, chunk.final_norm_bias) + 1;
    params.lane_done(chunk.final_norm_weight, end, mb.lane);
  }
  void embedding_weight(const ChunkUses& chunk, Matrix d, const MicroBatch& mb) {
    if (mb.first_of_lane) params.zero_gradient(chunk.embedding, mb.lane);
    backend.embedding_backward(stream, mb.tokens, d, vocab_begin(chunk), params.gradient(chunk.embedding, mb.lane));
    if (chunk.position >= 0) {
      if (mb.first_of_lane) params.zero_gradient(chunk.position, mb.lane);
      backend.add_position_backward(stream, d, 0, shape.seq_len, params.gradient(chunk.position, mb.lane));
    }
    if (mb.last_of_lane) params.lane_done(chunk.embedding, std::max(chunk.embedding, chunk.position) + 1, mb.lane);
  }
};

StageModel::StageModel(const JobSpec& job, StageUses uses, Options options, parallel::ShardedParams& params,
                       parallel::TensorParallel& tp, kernels::Backend& backend, kernels::Stream& stream)
    : impl_(std::make_unique<Impl>(job, std::move(uses), std::move(options), params, tp, backend, stream)) {}
StageModel::~StageModel() = default;

StageBytes StageModel::plan(const JobSpec& job, const StageUses& uses, const Options& options) {
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

void StageModel::weights_changed() {
  for (std::vector<bool>& chunk : impl_->stale) chunk.assign(chunk.size(), true);
  impl_->head_stale = true;
}

kernels::Stream& StageModel::stream() { return impl_->stream; }
Matrix StageModel::input(int chunk, int input) { return impl_->memory.inputs[size_t(chunk)][size_t(input)]; }
void StageModel::use_input(int chunk, int slot, int input) {
  impl_->slot(chunk, slot).blocks.front().x = this->input(chunk, input);
}
Matrix StageModel::output(int chunk, int slot) { return impl_->slot(chunk, slot).output; }
Matrix StageModel::output_gradient(int chunk, int slot) { return impl_->slot(chunk, slot).output_gradient; }
Matrix StageModel::input_gradient(int chunk, int slot) { return impl_->slot(chunk, slot).input_gradient; }

void StageModel::forward(int chunk, int slot, const MicroBatch& mb, bool train, double* loss) {
  impl_->forward(chunk, slot, mb, train, loss);
}
void StageModel::backward_input(int chunk, int slot, const MicroBatch& mb) { impl_->backward_input(chunk, slot, mb); }
void StageModel::backward_weight(int chunk, int slot, const MicroBatch& mb) { impl_->backward_weight(chunk, slot, mb); }

void StageModel::last_logits(const int32_t* tokens, int64_t count, std::span<float> logits) {
  Impl& m = *impl_;
  ENSURE(m.uses.chunks.size() == 1 && m.tp.size() == 1 && count >= 1 && count <= m.shape.seq_len);
  std::vector<int32_t> padded(size_t(m.shape.rows), 0);
  std::copy(tokens, tokens + count, padded.begin());
  const size_t bytes = padded.size() * sizeof(int32_t);
  const auto on_device = m.backend.allocate(bytes);
  m.backend.copy_to_device(m.stream, on_device->data(), padded.data(), bytes);
  MicroBatch mb;
  mb.tokens = mb.targets = static_cast<const int32_t*>(on_device->data());
  const auto loss = m.backend.allocate_host(sizeof(double));
  forward(0, 0, mb, false, static_cast<double*>(loss->data()));
  const int64_t v = int64_t(logits.size());
  const Matrix row = m.memory.shared.logits.columns(0, v).row_range(count - 1, 1);
  const auto wide = m.backend.allocate(size_t(v) * 4);
  m.backend.copy(m.stream, row, kernels::vector(wide->data(), DType::f32, v));
  m.backend.copy_to_host(m.stream, logits.data(), wide->data(), size_t(v) * 4);
  m.stream.synchronize();
}

}  // namespace trainctl
