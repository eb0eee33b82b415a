// The inside of StageModel, for stage_model.cpp and stage_inference.cpp.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/model/block_backend.h"
#include "runtime/model/stage_memory.h"
#include "runtime/model/stage_model.h"
#include "runtime/model/sublayers/sublayer_parts.h"

namespace trainctl {

struct StageModel::Impl {
  using Matrix = kernels::Matrix;
  using Memory = stage_memory::Memory;
  using Shared = stage_memory::Shared;
  using Slot = stage_memory::Slot;

  const StageUses uses;
  const Options options;
  parallel::ShardedParams& params;
  parallel::TensorParallel& tp;
  const LayerShape& shape;
  const std::unique_ptr<kernels::Backend> by_blocks;  // where this rank has several
  kernels::Backend& backend;
  kernels::Stream& stream;
  std::unique_ptr<parallel::ContextParallel> cp;
  std::unique_ptr<kernels::Buffer> memory_buffer, host_buffer, tp_scratch, rotary_buffer, margins_buffer;
  Memory memory;
  LayerContext context;
  std::vector<std::vector<Layer>> layers;  // [virtual_stage][layer]
  std::vector<Layer> mtp_layers;           // [module]
  std::vector<std::unique_ptr<kernels::PackedWeight>> mtp_joins;
  std::vector<std::vector<bool>> stale;    // [virtual_stage][part]: its weights changed since they were taken
  Matrix mid, delta;                       // forward under way: the stream is mid + delta
  Matrix d, embedding_gradient;            // backward under way
  std::unique_ptr<kernels::PackedWeight> head;
  int32_t* watched_experts = nullptr;  // see watch_experts
  float* watched_losses = nullptr;     // see watch_losses
  std::vector<Margins> margins;

  Impl(StageUses u, Options o, parallel::ShardedParams& p, parallel::TensorParallel& t, kernels::Backend& b,
       kernels::Stream& s, StagePeers peers)
      : uses(std::move(u)),
        options(std::move(o)),
        params(p),
        tp(t),
        shape(uses.shape),
        by_blocks(shape.cut.blocks_here() > 1
                      ? make_block_backend(b, params, shape.rows, shape.cut.blocks_here())
                      : nullptr),
        backend(by_blocks ? *by_blocks : b),
        stream(s),
        context{shape,
                backend,
                stream,
                params,
                tp,
                memory.shared.scratch,
                !options.split_backward,
                options.loss_scale} {
    context.experts = peers.experts;
    context.check_exchanges = std::move(peers.check);
    context.rehearses = peers.rehearses;
    context.hadamard_signs = uses.hadamard_signs;
    context.noise = uses.noise;
    if (shape.cut.exists()) {
      parallel::SequenceCut cut = shape.cut;
      cut.rank = peers.context ? peers.context->rank() : 0;
      cp = std::make_unique<parallel::ContextParallel>(cut, peers.context, backend, stream);
      context.cp = cp.get();
    }
    const StageBytes bytes = StageModel::plan(uses, options);
    memory_buffer = backend.allocate(bytes.activations + bytes.shared);
    host_buffer = backend.is_host() ? backend.allocate(bytes.host)
                                    : backend.allocate_host(std::max<size_t>(bytes.host, 1));
    Arena place(memory_buffer->data()), of_host(host_buffer->data());
    stage_memory::take_all(place, of_host, uses, options, memory);
    ENSURE(place.used() == bytes.activations + bytes.shared, "{} of {} bytes", place.used(),
           bytes.activations + bytes.shared);
    tp_scratch = backend.allocate(bytes.tensor_sums);
    tp.set_scratch(tp_scratch->data());
    if (bytes.positions > 0) take_rotary_tables(bytes.positions);
    if (bytes.margins > 0) {
      margins_buffer = backend.allocate(bytes.margins);
      Arena of_margins(margins_buffer->data());
      context.margins = margins = stage_memory::take_margins(of_margins, uses);
    }
    for (const VirtualStageUses& virtual_stage : uses.virtual_stages) {
      const std::vector<stage_memory::LayerRecord>& of_layers = memory.of_layers[layers.size()];
      layers.emplace_back();
      for (size_t l = 0; l < virtual_stage.layers.size(); ++l)
        layers.back().emplace_back(*virtual_stage.layers[l].plan, virtual_stage.layers[l].sublayers, context,
                                   of_layers[l]);
      stale.emplace_back(virtual_stage.parts.size(), true);
      if (virtual_stage.last)
        head = backend.make_packed(params.weight(virtual_stage.head).rows, shape.hidden, shape.compute);
      for (const MtpUses& module : virtual_stage.mtp) {
        mtp_layers.emplace_back(*module.layer.plan, module.layer.sublayers, context,
                                memory.of_modules[mtp_layers.size()]);
        mtp_joins.push_back(backend.make_packed(shape.hidden, 2 * shape.hidden, shape.compute));
      }
    }
  }

  void take_rotary_tables(size_t bytes) {
    rotary_buffer = backend.allocate(bytes);
    auto* at = static_cast<char*>(rotary_buffer->data());
    for (const Rotary& rotary : uses.rotaries) {
      context.rotary_tables.emplace_back(rotary, reinterpret_cast<const float*>(at));
      if (backend.computes()) {
        const std::vector<float> table = rotary_table(rotary, shape.seq_len);
        backend.copy_to_device(stream, at, table.data(), table.size() * sizeof(float));
        stream.synchronize();  // the table on the host ends here
      }
      at += stage_memory::rotary_bytes(rotary, shape);
    }
  }

  Slot& slot(int virtual_stage, int index) { return memory.slots[size_t(virtual_stage)][size_t(index)]; }
  const VirtualStageUses& uses_of(int virtual_stage) const {
    return uses.virtual_stages[size_t(virtual_stage)];
  }

  Kept kept(int c, size_t l) const { return uses_of(c).layers[l].kept; }

  int64_t vocab_begin(const VirtualStageUses& virtual_stage) const {
    int64_t begin = 0;
    stage_memory::vocab_rows(uses, virtual_stage, tp.rank(), &begin);
    return begin;
  }

  // ---- weights ----------------------------------------------------------------------------------------

  void take_weights(int c, int part) {
    if (!stale[size_t(c)][size_t(part)]) return;
    stale[size_t(c)][size_t(part)] = false;
    const StagePart& p = uses_of(c).parts[size_t(part)];
    params.await(p.begin, p.end);
    if (p.kind == StagePart::layer) layers[size_t(c)][size_t(p.index)].pack(context);
    if (p.kind == StagePart::head)
      backend.run(stream, kernels::Pack{.w = params.weight(p.begin), .packed = head.get()});
    if (p.kind == StagePart::mtp_module) pack_module(uses_of(c).mtp[size_t(p.index)], size_t(p.index));
  }

  /// Calls each(part) for `part`, or for all parts in the order of the pass.
  template <typename Each>
  void for_parts(int c, int part, bool backward, Each each) {
    const std::vector<StagePart>& parts = uses_of(c).parts;
    const auto run = [&](size_t i) {
      ENSURE(!stale[size_t(c)][i],
             "the weights of virtual stage {} part {} were not taken since they changed", c, i);
      each(parts[i]);
    };
    if (part != parallel::kAllParts) return run(size_t(part));
    for (size_t i = 0; i < parts.size(); ++i) run(backward ? parts.size() - 1 - i : i);
  }

  // ---- forward ----------------------------------------------------------------------------------------

  /// What follows computes with the documents and the loss scale of this micro-batch.
  void see(const MicroBatch& mb) {
    context.loss_scale = options.loss_scale * mb.loss_scale;
    context.first_key = mb.ids(BatchField::document_start);
    context.positions = mb.ids(BatchField::positions);
    context.rows = mb.rows;
  }

  void forward(int c, int index, const MicroBatch& mb, bool train, double* loss, int only) {
    const kernels::Range range(backend, "F", mb.index, c);
    const VirtualStageUses& virtual_stage = uses_of(c);
    Slot& s = slot(c, index);
    see(mb);
    context.trains = train;
    context.counts = train && mb.counts;
    for_parts(c, only, false, [&](const StagePart& part) {
      switch (part.kind) {
        case StagePart::embedding: embed(virtual_stage, s, mb.ids(BatchField::tokens)); break;
        case StagePart::layer:
          layer_forward(c, size_t(part.index), s,
                        train ? counts_of(c, virtual_stage.layers[size_t(part.index)], mb.index) : nullptr);
          break;
        case StagePart::final_norm: final_norm(virtual_stage, s, train); break;
        case StagePart::mtp_embedding:
          if (train) embed_ahead(virtual_stage, s, mb);
          break;
        case StagePart::mtp_module:
          if (train)
            module_forward(virtual_stage, s, size_t(part.index),
                           counts_of(c, virtual_stage.mtp[size_t(part.index)].layer, mb.index));
          break;
        case StagePart::head: heads_forward(virtual_stage, s, mb, train, loss); break;
      }
    });
  }

  /// x [Ml, C] = the tokens' embedding. use: of the embedding.
  void look_up(const VirtualStageUses& virtual_stage, int use, const int32_t* tokens, const Matrix& x) {
    const Matrix partial = tp.cuts_rows() ? memory.shared.scratch.partial : x;
    backend.run(stream, kernels::EmbeddingForward{.ids = tokens,
                                                  .table = params.weight(use),
                                                  .vocab_begin = vocab_begin(virtual_stage),
                                                  .out = partial,
                                                  .scale = uses.ends.embedding_scale});
    tp.leave(partial, x);
  }
  void embed(const VirtualStageUses& virtual_stage, Slot& s, const int32_t* tokens) {
    const Matrix x = s.input();
    look_up(virtual_stage, virtual_stage.embedding, tokens, x);
    if (virtual_stage.position >= 0)
      backend.run(stream, kernels::AddPosition{.table = params.weight(virtual_stage.position),
                                               .first_row = tp.first_local_row(shape.rows),
                                               .seq_len = shape.seq_len,
                                               .x = x,
                                               .positions = positions_from(tp.first_local_row(shape.rows))});
  }

  const int32_t* positions_from(int64_t row) const {
    return context.positions ? context.positions + row : nullptr;
  }

  /// Where the counts of experts of a layer go, or of a module of multi-token prediction; null: nowhere.
  int32_t* counts_of(int c, const LayerUses& layer, int micro_batch) const {
    if (!watched_experts || !experts_of(*layer.plan)) return nullptr;
    const ExpertCounts all = expert_counts(uses);
    int64_t before = 0;
    bool is_before = true;
    for (int other = 0; other <= c; ++other)
      for_each_layer(uses_of(other), [&](const LayerUses& one) {
        is_before &= &one != &layer;
        before += is_before && experts_of(*one.plan) != nullptr;
      });
    return watched_experts + micro_batch * all.of_micro_batch() + before * all.sequences * all.experts;
  }

  void layer_forward(int c, size_t l, Slot& s, int32_t* counts) {
    if (l == 0) mid = delta = Matrix{};
    context.expert_counts = counts;
    delta = layers[size_t(c)][l].forward(context, s.layers[l], mid, delta);
    context.expert_counts = nullptr;
    mid = s.layers[l].back()[kInput];
    const bool last = l + 1 == s.layers.size();
    if (last && !uses_of(c).last) {
      backend.run(stream, kernels::Copy{.src = mid, .dst = s.output});
      backend.run(stream, kernels::Add{.src = delta, .dst = s.output});
    } else if (!last && kept(c, l) == Kept::input) {
      // The next layer may overwrite the shared `mid`: hand it over in the next layer's own input.
      const Matrix x = s.layers[l + 1].front()[kInput];
      backend.run(stream, kernels::Copy{.src = mid, .dst = x});
      backend.run(stream, kernels::Add{.src = delta, .dst = x});
      mid = delta = Matrix{};
    }
  }

  void final_norm(const VirtualStageUses& virtual_stage, Slot& s, bool train) {
    Shared& m = memory.shared;
    if (s.layers.empty()) {
      mid = s.final_x;
      delta = Matrix{};
      backend.run(stream, kernels::Copy{.src = s.input(), .dst = mid});
    }
    const bool is_kept = train && !s.mtp.empty();
    const Matrix y = is_kept ? s.final_out : tp.cuts_rows() ? m.scratch.normed : m.head_input;
    backend.run(stream, kernels::NormForward{.kind = uses.final_norm.kind,
                                             .x = mid,
                                             .delta = delta,
                                             .weight = vector_weight(params, virtual_stage.final_norm_weight),
                                             .bias = vector_weight(params, virtual_stage.final_norm_bias),
                                             .eps = uses.final_norm.eps,
                                             .sum = s.final_x,
                                             .y = y,
                                             .stats = s.final_stats,
                                             .weight_offset = uses.final_norm.weight_offset});
    if (!is_kept) tp.enter(y, m.head_input);
  }

  /// A product with the head and its loss.
  struct HeadPass {
    Matrix input;                      ///< [M, C]
    Matrix gradient = {};              ///< [Ml, C] of what `input` was made of
    const int32_t* targets = nullptr;  ///< below 0: of no loss, where `masks`
    bool masks = false;
    const float* weights = nullptr;
    float scale = 1;  ///< of the loss, in its gradients
    bool train = false;
    bool first_of_head = true;  ///< of the products of a micro-batch
    double* loss = nullptr;
  };
  /// Those of a micro-batch. In training they make the head's gradients, too (stage_head.cpp).
  void heads_forward(const VirtualStageUses& virtual_stage, Slot& s, const MicroBatch& mb, bool train,
                     double* loss);
  void head_forward(const VirtualStageUses& virtual_stage, const MicroBatch& mb, const HeadPass& pass);

  // ---- multi-token prediction (stage_mtp.cpp) -----------------------------------------------------------

  /// Sums of the losses of a micro-batch: of the head, then of each module, of each context block.
  int loss_sums() const { return shape.cut.blocks_here() * (1 + int(mtp_layers.size())); }
  void pack_module(const MtpUses& module, size_t i);
  void embed_ahead(const VirtualStageUses& virtual_stage, Slot& s, const MicroBatch& mb);
  /// counts: as of counts_of.
  void module_forward(const VirtualStageUses& virtual_stage, Slot& s, size_t i, int32_t* counts);
  HeadPass module_pass(Slot& s, const MicroBatch& mb, size_t i, double* loss);
  /// Both halves of backward at once: splits_backward is false with modules.
  void module_backward(const VirtualStageUses& virtual_stage, Slot& s, size_t i, const MicroBatch& mb);
  void ahead_weight(const VirtualStageUses& virtual_stage, const MicroBatch& mb);

  /// The pass of StageModel::logits_behind: logits [sequences, V]. ids: the tokens on the device, then their
  /// positions.
  Matrix forward_behind(std::span<const CachedRows> sequences, const int32_t* ids, int64_t v) {
    struct WholeAgain {
      Impl& impl;
      Memory whole = impl.memory;
      ~WholeAgain() { impl.memory = std::move(whole), impl.context.cached = {}; }
    } const whole_again{*this};
    int64_t count = 0;
    for (const CachedRows& rows : sequences) count += rows.count;
    const VirtualStageUses& virtual_stage = uses_of(0);
    memory = stage_memory::first_rows(std::move(memory), uses, count);
    context.first_key = nullptr;
    context.positions = ids + count;
    context.cached = sequences;
    Slot& s = slot(0, 0);
    const Matrix logits = memory.shared.logits.columns(0, v).row_range(0, int64_t(sequences.size()));
    for_parts(0, parallel::kAllParts, false, [&](const StagePart& part) {
      switch (part.kind) {
        case StagePart::embedding: embed(virtual_stage, s, ids); break;
        case StagePart::layer: layer_forward(0, size_t(part.index), s, nullptr); break;
        case StagePart::final_norm: final_norm(virtual_stage, s, false); break;
        case StagePart::mtp_embedding:
        case StagePart::mtp_module: break;
        case StagePart::head:
          backend.run(stream,
                      kernels::LinearForward{.x = last_rows(sequences), .w = head.get(), .y = logits});
          break;
      }
    });
    return logits;
  }
  /// The last row of each sequence of the head's input, moved to its begin.
  Matrix last_rows(std::span<const CachedRows> sequences) const {
    const Matrix& all = memory.shared.head_input;
    int64_t end = 0, row = 0;
    for (const CachedRows& rows : sequences) {
      end += rows.count;
      // Rows before it are those of sequences that were moved already.
      if (end - 1 != row)
        backend.run(stream, kernels::Copy{.src = all.row_range(end - 1, 1), .dst = all.row_range(row, 1)});
      ++row;
    }
    return all.row_range(0, row);
  }

  /// Waits for logits [rows, V] on the device, formed as the model gives them.
  void take_logits(const Matrix& computed, std::span<float> logits) {
    const auto wide = backend.allocate(logits.size() * sizeof(float));
    const Matrix formed = kernels::matrix(wide->data(), DType::f32, computed.rows, computed.cols);
    backend.run(stream, kernels::Copy{.src = computed, .dst = formed});
    backend.run(stream, kernels::FormLogits{.logits = formed, .form = uses.ends.logits});
    backend.copy_to_host(stream, logits.data(), wide->data(), logits.size() * sizeof(float));
    stream.synchronize();
  }

  // ---- backward ---------------------------------------------------------------------------------------

  /// Both halves part by part, or one of them.
  void backward(int c, int index, const MicroBatch& mb, bool input_half, bool weight_half, int only) {
    const char* const name = input_half && weight_half ? "B+W" : input_half ? "B" : "W";
    const kernels::Range range(backend, name, mb.index, c);
    Slot& s = slot(c, index);
    see(mb);
    for_parts(c, only, true, [&](const StagePart& part) {
      if (input_half) input_gradient(c, part, s, mb);
      if (weight_half) weight_gradient(c, part, s, mb);
    });
  }

  void input_gradient(int c, const StagePart& part, Slot& s, const MicroBatch& mb) {
    const VirtualStageUses& virtual_stage = uses_of(c);
    switch (part.kind) {
      case StagePart::head: break;  // the forward half has made it
      case StagePart::mtp_module: module_backward(virtual_stage, s, size_t(part.index), mb); break;
      case StagePart::mtp_embedding: break;
      case StagePart::final_norm: final_norm_backward(virtual_stage, s, mb); break;
      case StagePart::layer: layer_backward(c, size_t(part.index), s, mb); break;
      case StagePart::embedding: embedding_backward(s); break;
    }
  }

  void weight_gradient(int c, const StagePart& part, Slot& s, const MicroBatch& mb) {
    const VirtualStageUses& virtual_stage = uses_of(c);
    switch (part.kind) {
      case StagePart::head: return;
      case StagePart::mtp_module: break;  // the input half has made it
      case StagePart::mtp_embedding: ahead_weight(virtual_stage, mb); break;
      case StagePart::final_norm: final_weight(virtual_stage, s, mb); break;
      case StagePart::layer: {
        const size_t l = size_t(part.index);
        if (kept(c, l) == Kept::all_but_cheap) layers[size_t(c)][l].recompute_cheap(context, s.layers[l]);
        layers[size_t(c)][l].backward_weight(context, s.layers[l], {mb.lane, mb.first_of_lane});
        break;
      }
      case StagePart::embedding: embedding_weight(virtual_stage, s, mb); break;
    }
    merge_lanes(part.begin, part.end, mb);
  }

  /// The lanes of a micro-batch have all they get: one for each context block, of experts also those of the
  /// ranks that share them.
  void merge_lanes(int begin, int end, const MicroBatch& mb) {
    const int time = mb.lane / shape.cut.blocks_here();
    for (int use = begin; mb.last_of_lane && use < end; ++use) {
      if (params.merges_each(use)) continue;
      const int together = params.lanes_together(use);
      for (int i = 0; i < together; ++i) params.merge_lane(use, use + 1, time * together + i);
    }
  }
  void zero_gradients(int use, const MicroBatch& mb) {
    for (int block = 0; mb.first_of_lane && block < shape.cut.blocks_here(); ++block)
      params.zero_gradient(use, mb.lane + block);
  }

  void final_norm_backward(const VirtualStageUses& virtual_stage, Slot& s, const MicroBatch& mb) {
    const bool fused = !options.split_backward;
    const auto gradient = [&](int use, const Matrix& waiting) {
      return fused ? vector_gradient(params, use, mb.lane) : use < 0 ? Matrix{} : waiting;
    };
    d = s.layers.empty() ? s.input_gradient : memory.shared.pong;
    backend.run(stream, kernels::NormBackward{
                            .kind = uses.final_norm.kind,
                            .dy = s.final_gradient,
                            .x = s.final_x,
                            .weight = vector_weight(params, virtual_stage.final_norm_weight),
                            .stats = s.final_stats,
                            .dx = d,
                            .dweight = gradient(virtual_stage.final_norm_weight, s.final_norm_weight),
                            .dbias = gradient(virtual_stage.final_norm_bias, s.final_norm_bias),
                            .accumulate = fused && !mb.first_of_lane,
                            .weight_offset = uses.final_norm.weight_offset});
  }

  void layer_backward(int c, size_t l, Slot& s, const MicroBatch& mb) {
    const VirtualStageUses& virtual_stage = uses_of(c);
    if (l + 1 == s.layers.size() && !virtual_stage.last) d = s.output_gradient;
    if (kept(c, l) == Kept::input) layers[size_t(c)][l].recompute(context, s.layers[l]);
    const Matrix other = d.data == memory.shared.ping.data ? memory.shared.pong : memory.shared.ping;
    const Matrix din = l == 0 && !virtual_stage.first ? s.input_gradient : other;
    layers[size_t(c)][l].backward_input(context, s.layers[l], d, din, {mb.lane, mb.first_of_lane});
    d = din;
  }

  Matrix& full_embedding_gradient(Slot& s) {
    return options.split_backward ? s.embedding_gradient : memory.shared.embedding_gradient;
  }

  void embedding_backward(Slot& s) {
    if (s.layers.empty()) d = s.output_gradient;
    embedding_gradient = full_embedding_gradient(s);
    if (tp.cuts_rows())
      tp.enter(d, embedding_gradient);
    else if (options.split_backward)
      backend.run(stream, kernels::Copy{.src = d, .dst = embedding_gradient});
    else
      embedding_gradient = d;
  }

  void final_weight(const VirtualStageUses& virtual_stage, Slot& s, const MicroBatch& mb) {
    if (!options.split_backward) return;  // the input half made them
    accumulate(context, s.final_norm_weight,
               vector_gradient(params, virtual_stage.final_norm_weight, mb.lane), mb.first_of_lane);
    accumulate(context, s.final_norm_bias, vector_gradient(params, virtual_stage.final_norm_bias, mb.lane),
               mb.first_of_lane);
  }
  void embedding_weight(const VirtualStageUses& virtual_stage, Slot& s, const MicroBatch& mb) {
    const Matrix dx = options.split_backward ? s.embedding_gradient : embedding_gradient;
    zero_gradients(virtual_stage.embedding, mb);
    backend.run(stream,
                kernels::EmbeddingBackward{.ids = mb.ids(BatchField::tokens),
                                           .dout = dx,
                                           .vocab_begin = vocab_begin(virtual_stage),
                                           .dtable = params.gradient(virtual_stage.embedding, mb.lane),
                                           .scale = uses.ends.embedding_scale});
    if (virtual_stage.position < 0) return;
    zero_gradients(virtual_stage.position, mb);
    backend.run(stream,
                kernels::AddPositionBackward{.dx = dx,
                                             .seq_len = shape.seq_len,
                                             .dtable = params.gradient(virtual_stage.position, mb.lane),
                                             .positions = positions_from(0)});
  }
};

}  // namespace trainctl
