#include "runtime/model/stage_memory.h"

#include <algorithm>
#include <optional>

#include "runtime/base/error.h"

namespace trainctl {
namespace stage_memory {
namespace {

/// Who holds a tensor: each micro-batch in flight, each layer, or all of them together.
enum class Holder { slot, layer, shared, nobody };

/// What is kept of a layer's forward pass.
enum class Kept { all, all_but_cheap, input };

Holder holder_of(const TensorDeclaration& d, bool first_of_layer, Kept kept, bool split) {
  switch (d.life) {
    case Life::input: return first_of_layer || kept != Kept::input ? Holder::slot : Holder::shared;
    case Life::activation: return kept == Kept::input ? Holder::shared : Holder::slot;
    case Life::cheap: return kept == Kept::all ? Holder::slot : Holder::shared;
    case Life::gradient: return split ? Holder::slot : Holder::shared;
    case Life::late_gradient: return split ? Holder::slot : Holder::nobody;
    case Life::layer: return Holder::layer;
    case Life::scratch: return Holder::shared;
  }
  return Holder::nobody;
}

/// What a stage's memory is laid out from.
struct Layout {
  const JobSpec& job;
  const bool split;
  const LayerShape s = layer_shape(job);
  const LayerTensors tensors = layer_tensors(job);

  /// Of layer `index` of a virtual stage of `layers`.
  Kept kept(size_t index, size_t layers) const {
    if (int64_t(index) < job.recomputed_layers(int64_t(layers))) return Kept::input;
    return job.recompute == Recompute::selective ? Kept::all_but_cheap : Kept::all;
  }
  /// Of the layer of a rank that keeps least; nullopt: the rank has no layer.
  std::optional<Kept> least_kept(const StageUses& uses) const {
    std::optional<Kept> least;
    for (const VirtualStageUses& virtual_stage : uses.virtual_stages)
      if (const size_t layers = virtual_stage.layers.size(); layers > 0)
        least = std::max(least.value_or(Kept::all), kept(0, layers));
    return least;
  }
  /// The tensors of one layer that `holder` holds; others stay as they are. has_input: the layer's input is
  /// among them.
  void take(Arena& arena, Holder holder, Kept kept, LayerRecord& record, bool has_input = true) const {
    record.resize(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      for (const TensorDeclaration& d : tensors[i]) {
        if (holder_of(d, i == 0, kept, split) != holder || (i == 0 && d.life == Life::input && !has_input))
          continue;
        record[i][size_t(d.number)] =
            d.alone ? arena.take_alone(d.dtype, d.rows, d.cols) : arena.take(d.dtype, d.rows, d.cols);
      }
  }
};

/// shared: where the tensors lie that the slot does not hold.
void take_slot(Arena& arena, const Layout& layout, const VirtualStageUses& uses, const LayerRecord& shared,
               Slot& slot) {
  const LayerShape& s = layout.s;
  const bool split = layout.split;
  slot.layers.assign(uses.layers.size(), shared);
  for (size_t l = 0; l < slot.layers.size(); ++l)   // what is received has buffers of its own; see use_input
    layout.take(arena, Holder::slot, layout.kept(l, slot.layers.size()), slot.layers[l], uses.first || l > 0);
  const auto edge = [&] { return arena.take(s.compute, s.local_rows, s.hidden); };
  if (!uses.last) slot.output = edge(), slot.output_gradient = edge();
  if (uses.first) slot.entry = slot.output;
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

void take_shared(Arena& arena, const Layout& layout, const StageUses& uses, Shared& m) {
  const LayerShape& s = layout.s;
  m.scratch.take(arena, s);
  m.layer.resize(layout.tensors.size());
  if (const std::optional<Kept> least = layout.least_kept(uses))
    layout.take(arena, Holder::shared, *least, m.layer);
  m.ping = arena.take(s.compute, s.local_rows, s.hidden);
  m.pong = arena.take(s.compute, s.local_rows, s.hidden);
  for (const VirtualStageUses& virtual_stage : uses.virtual_stages) {
    if (virtual_stage.first && !layout.split) m.embedding_gradient = arena.take(s.compute, s.rows, s.hidden);
    if (!virtual_stage.last) continue;
    const int tp = layout.job.parallelism.tensor;
    // The widest slice of the vocabulary: every tp rank plans the same memory.
    const int64_t v = (layout.job.model.vocab_size + tp - 1) / tp;
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
void take_once(Arena& arena, const Layout& layout, const StageUses& uses, Memory& m) {
  for (const VirtualStageUses& virtual_stage : uses.virtual_stages) {
    m.of_layers.emplace_back(virtual_stage.layers.size());
    for (LayerRecord& layer : m.of_layers.back()) layout.take(arena, Holder::layer, Kept::all, layer);
  }
  take_shared(arena, layout, uses, m.shared);
}

}  // namespace

LayerTensors layer_tensors(const JobSpec& job) {
  LayerTensors tensors;
  for (const SublayerKind* kind : layer_kind(job.model)) tensors.push_back(kind->tensors(layer_shape(job)));
  for (const auto& list : tensors)
    for (const TensorDeclaration& d : list)
      ENSURE(d.number >= 0 && d.number < kMostTensors, "tensor {}", d.number);
  return tensors;
}

int64_t vocab_rows(const StageUses& uses, const VirtualStageUses& virtual_stage, const JobSpec& job,
                   int tp_rank, int64_t* begin) {
  const int use = virtual_stage.head >= 0 ? virtual_stage.head : virtual_stage.embedding;
  const parallel::LocalShard shard =
      parallel::local_shard(uses.uses[size_t(use)].layout, job.parallelism.tensor, tp_rank);
  if (begin) *begin = shard.pieces.front().global.row_begin;
  return shard.rows;
}

void take_all(Arena& arena, const JobSpec& job, const StageUses& uses, const StageModel::Options& options, Memory& m) {
  const Layout layout{job, options.split_backward};
  const LayerShape& s = layout.s;
  take_once(arena, layout, uses, m);
  m.slots.resize(uses.virtual_stages.size());
  m.inputs.resize(uses.virtual_stages.size());
  for (size_t c = 0; c < uses.virtual_stages.size(); ++c) {
    const VirtualStageUses& virtual_stage = uses.virtual_stages[c];
    m.slots[c].resize(size_t(options.slots[c]));
    for (Slot& slot : m.slots[c]) take_slot(arena, layout, virtual_stage, m.shared.layer, slot);
    if (!virtual_stage.first) m.inputs[c].resize(size_t(options.slots[c]) + 1);
    for (Matrix& input : m.inputs[c]) input = arena.take(s.compute, s.local_rows, s.hidden);
    for (size_t slot = 0; slot < m.slots[c].size() && !virtual_stage.first; ++slot)
      m.slots[c][slot].input() = m.inputs[c][slot];
  }
}

}  // namespace stage_memory

kernels::ScratchShape scratch_shape(const JobSpec& job, int64_t optimizer_elements, int64_t optimizer_boxes) {
  const LayerShape s = layer_shape(job);
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
  const Layout layout{job, options.split_backward};
  const LayerShape& s = layout.s;
  const int tp = job.parallelism.tensor;
  StageBytes bytes;
  // The slots of a virtual stage are alike and every piece begins on 64 bytes, so that one measured slot is
  // all of them.
  for (size_t c = 0; c < uses.virtual_stages.size(); ++c) {
    Arena one;
    Slot slot;
    take_slot(one, layout, uses.virtual_stages[c], LayerRecord(layout.tensors.size()), slot);
    bytes.activations += one.used() * size_t(options.slots[c]);
    Arena input;
    if (!uses.virtual_stages[c].first) input.take(s.compute, s.local_rows, s.hidden);
    bytes.activations += input.used() * (size_t(options.slots[c]) + 1);
  }
  Arena shared;
  Memory unused;
  take_once(shared, layout, uses, unused);
  bytes.shared = shared.used();
  bytes.tensor_sums = parallel::TensorParallel::scratch_bytes(tp, s.compute, s.rows, s.hidden);
  if (kind_of(s.family).rotary) bytes.positions = size_t(job.data.seq_len * s.head_dim) * 4;
  return bytes;
}

}  // namespace trainctl
