#include "runtime/model/stage_memory.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl {
namespace stage_memory {
namespace {

/// Who holds a tensor: each micro-batch in flight, each layer, or all of them together.
enum class Holder { slot, layer, shared, host, nobody };

Holder holder_of(const TensorDeclaration& d, bool first_of_layer, Kept kept, bool split) {
  switch (d.life) {
    case Life::input: return first_of_layer || kept != Kept::input ? Holder::slot : Holder::shared;
    case Life::activation: return kept == Kept::input ? Holder::shared : Holder::slot;
    case Life::cheap: return kept == Kept::all ? Holder::slot : Holder::shared;
    case Life::gradient: return split ? Holder::slot : Holder::shared;
    case Life::late_gradient: return split ? Holder::slot : Holder::nobody;
    case Life::layer: return Holder::layer;
    case Life::scratch: return Holder::shared;
    case Life::host: return Holder::host;
  }
  return Holder::nobody;
}

/// The tensors of a kind of layer, of each of its sublayers.
using LayerTensors = std::vector<std::vector<TensorDeclaration>>;

/// What a stage's memory is laid out from.
struct Layout {
  const StageUses& uses;
  const bool split;
  const LayerShape& s = uses.shape;
  std::map<const LayerPlan*, LayerTensors> tensors = {};
  std::map<const LayerPlan*, Kept> least_kept = {};  ///< of the layer of this kind that keeps least

  Layout(const StageUses& stage, bool split_backward) : uses(stage), split(split_backward) {
    for (const VirtualStageUses& virtual_stage : uses.virtual_stages) {
      for (const LayerUses& layer : virtual_stage.layers) add(*layer.plan, layer.kept);
      for (const MtpUses& module : virtual_stage.mtp) add(*module.layer.plan, module.layer.kept);
    }
  }

  /// The tensors of one layer that `holder` holds; others stay as they are. has_input: the layer's input is
  /// among them.
  void take(Arena& arena, Holder holder, const LayerPlan* plan, Kept kept, LayerRecord& record,
            bool has_input = true) const {
    const LayerTensors& of_layer = tensors.at(plan);
    record.resize(of_layer.size());
    for (size_t i = 0; i < of_layer.size(); ++i)
      for (const TensorDeclaration& d : of_layer[i]) {
        if (holder_of(d, i == 0, kept, split) != holder || (i == 0 && d.life == Life::input && !has_input))
          continue;
        record[i][size_t(d.number)] =
            d.alone ? arena.take_alone(d.dtype, d.rows, d.cols) : arena.take(d.dtype, d.rows, d.cols);
      }
  }

 private:
  void add(const LayerPlan& plan, Kept kept) {
    const auto [known, fresh] = least_kept.try_emplace(&plan, kept);
    known->second = std::max(known->second, kept);
    if (!fresh) return;
    for (const SublayerPlan& sublayer : plan.sublayers) {
      tensors[&plan].push_back(tensors_of(sublayer, s));
      for (const TensorDeclaration& d : tensors[&plan].back())
        ENSURE(d.number >= 0 && d.number < kMostTensors, "tensor {} of {}", d.number, name_of(sublayer));
    }
  }
};

using SharedLayers = std::map<const LayerPlan*, LayerRecord>;

/// shared: as of take_slot.
void take_module(Arena& arena, Arena& host, const Layout& layout, const LayerUses& layer,
                 const SharedLayers& shared, MtpRecord& record) {
  const LayerShape& s = layout.s;
  const auto stats = [&] { return arena.take(DType::f32, s.local_rows, 2).as<float>(); };
  if (const auto elsewhere = shared.find(layer.plan.get()); elsewhere != shared.end())
    record.layer = elsewhere->second;
  layout.take(arena, Holder::slot, layer.plan.get(), layer.kept, record.layer);
  layout.take(host, Holder::host, layer.plan.get(), layer.kept, record.layer);
  record.pair = arena.take(s.compute, s.local_rows, 2 * s.hidden);
  for (Matrix* of : {&record.embedded, &record.sum, &record.out, &record.gradient})
    *of = arena.take(s.compute, s.local_rows, s.hidden);
  record.embedded_stats = stats(), record.hidden_stats = stats(), record.stats = stats();
}

/// shared: where the tensors lie that the slot does not hold.
void take_slot(Arena& arena, Arena& host, const Layout& layout, const VirtualStageUses& uses,
               const SharedLayers& shared, Slot& slot) {
  const LayerShape& s = layout.s;
  const bool split = layout.split;
  for (const LayerUses& layer : uses.layers) {
    const bool has_input =
        uses.first || !slot.layers.empty();  // what is received has buffers of its own; see use_input
    const auto elsewhere = shared.find(layer.plan.get());
    slot.layers.push_back(elsewhere == shared.end() ? LayerRecord{} : elsewhere->second);
    layout.take(arena, Holder::slot, layer.plan.get(), layer.kept, slot.layers.back(), has_input);
    layout.take(host, Holder::host, layer.plan.get(), layer.kept, slot.layers.back());
  }
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
    if (!uses.mtp.empty()) slot.final_out = edge();
    for (const MtpUses& module : uses.mtp)
      take_module(arena, host, layout, module.layer, shared, slot.mtp.emplace_back());
  }
}

/// Columns between two rows of logits: rows begin on 128 bytes, whatever the vocabulary, or wide loads and fast products could not be used.
int64_t padded_vocab(int64_t v) { return (v + 63) / 64 * 64; }

void take_shared(Arena& arena, const Layout& layout, const StageUses& uses, Shared& m) {
  const LayerShape& s = layout.s;
  m.scratch.take(arena, s);
  const Arena begin = arena;
  for (const auto& [plan, least] : layout.least_kept) {
    Arena own = begin;
    layout.take(own, Holder::shared, plan, least, m.layer[plan]);
    if (own.used() > arena.used()) arena = own;
  }
  m.ping = arena.take(s.compute, s.local_rows, s.hidden);
  m.pong = arena.take(s.compute, s.local_rows, s.hidden);
  for (const VirtualStageUses& virtual_stage : uses.virtual_stages) {
    if (virtual_stage.first && !layout.split) m.embedding_gradient = arena.take(s.compute, s.rows, s.hidden);
    if (!virtual_stage.last) continue;
    const int64_t tp = s.tensor;
    // The widest slice of the vocabulary: every tp rank plans the same memory.
    const int64_t v = (uses.vocabulary + tp - 1) / tp;
    m.logits = arena.take(s.compute, s.rows, padded_vocab(v));
    m.head_input = arena.take(s.compute, s.rows, s.hidden);
    m.head_input_gradient = arena.take(s.compute, s.rows, s.hidden);
    m.stats = arena.take(DType::f32, s.rows, 3).as<float>();
    m.all_stats = arena.take(DType::f32, s.rows * tp, 3).as<float>();
    m.lse = arena.take(DType::f32, 1, s.rows).as<float>();
    m.loss = arena.take(DType::f32, 1, s.rows).as<float>();
    if (virtual_stage.mtp.empty()) continue;
    m.pair_gradient = arena.take(s.compute, s.local_rows, 2 * s.hidden);
    for (size_t i = 0; i < virtual_stage.mtp.size(); ++i)
      m.embedded_gradients.push_back(arena.take(s.compute, s.local_rows, s.hidden));
  }
}

/// What does not come once more with each micro-batch in flight.
void take_once(Arena& arena, const Layout& layout, const StageUses& uses, Memory& m) {
  for (const VirtualStageUses& virtual_stage : uses.virtual_stages) {
    m.of_layers.emplace_back(virtual_stage.layers.size());
    for (size_t l = 0; l < virtual_stage.layers.size(); ++l)
      layout.take(arena, Holder::layer, virtual_stage.layers[l].plan.get(), Kept::all, m.of_layers.back()[l]);
    for (const MtpUses& module : virtual_stage.mtp)
      layout.take(arena, Holder::layer, module.layer.plan.get(), Kept::all, m.of_modules.emplace_back());
  }
  take_shared(arena, layout, uses, m.shared);
}

}  // namespace

int64_t vocab_rows(const StageUses& uses, const VirtualStageUses& virtual_stage, int tp_rank,
                   int64_t* begin) {
  const int use = virtual_stage.head >= 0 ? virtual_stage.head : virtual_stage.embedding;
  const parallel::LocalShard shard =
      parallel::local_shard(uses.uses[size_t(use)].layout, int(uses.shape.tensor), tp_rank);
  if (begin) *begin = shard.pieces.front().global.row_begin;
  return shard.rows;
}

std::vector<Margins> take_margins(Arena& arena, const StageUses& uses) {
  std::vector<Margins> list;
  const auto add = [&](const LayerUses& layer) {
    for (size_t i = 0; i < layer.plan->sublayers.size(); ++i)
      if (const auto* moe = std::get_if<MoePlan>(&layer.plan->sublayers[i]); moe && moe->counts_margins)
        list.push_back({.use = layer.sublayers[i].use(MoePlan::selection_bias),
                        .sums = arena.take(DType::i32, moe->experts, kernels::kMarginBins),
                        .range = arena.take(DType::f32, 1, 2)});
  };
  for (const VirtualStageUses& virtual_stage : uses.virtual_stages) for_each_layer(virtual_stage, add);
  return list;
}

void take_all(Arena& arena, Arena& host, const StageUses& uses, const StageModel::Options& options,
              Memory& m) {
  const Layout layout(uses, options.split_backward);
  const LayerShape& s = layout.s;
  take_once(arena, layout, uses, m);
  m.slots.resize(uses.virtual_stages.size());
  m.inputs.resize(uses.virtual_stages.size());
  for (size_t c = 0; c < uses.virtual_stages.size(); ++c) {
    const VirtualStageUses& virtual_stage = uses.virtual_stages[c];
    m.slots[c].resize(size_t(options.slots[c]));
    for (Slot& slot : m.slots[c]) take_slot(arena, host, layout, virtual_stage, m.shared.layer, slot);
    if (!virtual_stage.first) m.inputs[c].resize(size_t(options.slots[c]) + 1);
    for (Matrix& input : m.inputs[c]) input = arena.take(s.compute, s.local_rows, s.hidden);
    for (size_t slot = 0; slot < m.slots[c].size() && !virtual_stage.first; ++slot)
      m.slots[c][slot].input() = m.inputs[c][slot];
  }
}

Memory first_rows(Memory m, const StageUses& uses, int64_t count) {
  const Layout layout(uses, false);
  const int64_t rows = uses.shape.rows;
  // Some tensors have several parts of so many rows, one after another; what belongs to no token has fewer.
  const auto cut = [&](Matrix& of) {
    if (of && of.rows % rows == 0) of = of.row_range(0, of.rows / rows * count);
  };
  for (size_t c = 0; c < m.slots.size(); ++c)
    for (Slot& slot : m.slots[c]) {
      for (size_t l = 0; l < slot.layers.size(); ++l) {
        const LayerTensors& declared = layout.tensors.at(uses.virtual_stages[c].layers[l].plan.get());
        for (size_t i = 0; i < declared.size(); ++i)
          for (const TensorDeclaration& d : declared[i])
            if (!d.whole) cut(slot.layers[l][i][size_t(d.number)]);
      }
      for (Matrix* of : {&slot.entry, &slot.final_x}) cut(*of);
    }
  LayerScratch& scratch = m.shared.scratch;
  for (Matrix* of : {&scratch.partial, &scratch.local, &scratch.normed, &m.shared.head_input}) cut(*of);
  return m;
}

}  // namespace stage_memory

kernels::ScratchShape scratch_shape(const ModelTables& tables, const parallel::ShardingBytes& optimizer) {
  const LayerShape& s = tables.shape;
  const Widest widest = widest_of(tables.model, s);
  return {.rows = s.rows,
          .widest = widest.columns,
          .attention = widest.attention,
          .embedding_rows = (tables.model.vocabulary + s.tensor - 1) / s.tensor,
          .embedding_cols = s.hidden,
          .optimizer_elements = optimizer.state_elements,
          .optimizer_boxes = optimizer.state_boxes,
          .square_sums = optimizer.square_sums};
}

StageBytes StageModel::plan(const StageUses& uses, const Options& options) {
  using namespace stage_memory;
  const Layout layout(uses, options.split_backward);
  const LayerShape& s = layout.s;
  StageBytes bytes;
  // The slots of a virtual stage are alike and every piece begins on 64 bytes, so that one measured slot is
  // all of them.
  for (size_t c = 0; c < uses.virtual_stages.size(); ++c) {
    Arena one, host;
    Slot slot;
    take_slot(one, host, layout, uses.virtual_stages[c], {}, slot);
    bytes.activations += one.used() * size_t(options.slots[c]);
    bytes.host += host.used() * size_t(options.slots[c]);
    Arena input;
    if (!uses.virtual_stages[c].first) input.take(s.compute, s.local_rows, s.hidden);
    bytes.activations += input.used() * (size_t(options.slots[c]) + 1);
  }
  Arena shared;
  Memory unused;
  take_once(shared, layout, uses, unused);
  bytes.shared = shared.used();
  const auto sums = [&](DType dtype, int64_t cols) {
    return parallel::TensorParallel::scratch_bytes(int(s.tensor), dtype, s.rows, cols);
  };
  bytes.tensor_sums = std::max(sums(s.compute, s.hidden), sums(DType::f32, 2));  // of activations; of QkNorms
  bytes.context = parallel::context_index_bytes(s.cut);
  Arena margins;
  take_margins(margins, uses);
  bytes.margins = margins.used();
  for (const Rotary& rotary : uses.rotaries) bytes.positions += rotary_bytes(rotary, s);
  return bytes;
}

}  // namespace trainctl
