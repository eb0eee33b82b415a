// A layer is a list of sublayers, each of which reads the residual stream and adds to it:
//
//   x = previous + delta;  delta = f(norm(x))
//
// where f may end with a norm, too, and may begin without one.
//
// A kind of sublayer is a value (AttentionPlan, MlpPlan) and one file of this folder: its sizes and
// parameters, its memory and its five passes. A layer is a list of such values (layer.h), a model a list
// of layers (runtime/model/model_plan.h). Everything else (table of parameters, memory plan, pipeline,
// checkpoints, tally) follows from them.
//
// Letters: M tokens of a micro-batch, Ml the rows of them that a rank holds outside the cut parts
// (TensorParallel), C hidden size, H heads / tp, G kv_heads / tp (a fraction where ranks share a head,
// shared_heads.h), D head_dim, A = H D, Q = (H + 2 G) D, and A more with a gate, F = ffn_size / tp, U = F, or
// 2 F with a gate.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "parallel/context_parallel.h"
#include "parallel/sharded_params.h"
#include "parallel/tensor_parallel.h"
#include "runtime/model/sublayers/arena.h"
#include "runtime/model/sublayers/key_value_cache.h"
#include "runtime/model/sublayers/param_list.h"
#include "runtime/model/sublayers/rotary.h"
#include "runtime/model/sublayers/rows_place.h"
#include "runtime/spec/fields/fp8_spec.h"

namespace trainctl {

/// The formats of each class of tensors.
struct Precision {
  DType activations = DType::f32;   ///< what products read and write
  DType matrices = DType::f32;      ///< compute copies of matrices, embeddings and the head
  DType vectors = DType::f32;       ///< compute copies of norms and biases
  DType gradients = DType::f32;     ///< of parameters, and every sum of them
  DType state = DType::f32;         ///< master weights and moments
  bool operator==(const Precision&) const = default;
};
inline Precision precision_of(DType compute) { return {.activations = compute, .matrices = compute}; }

/// How the products of a sublayer multiply; see kernels/fp8_ops.h.
struct Fp8Plan {
  Fp8Recipe recipe = Fp8Recipe::none;  ///< none: in the format of activations
  Fp8Gradients gradients = Fp8Gradients::e4m3;
  bool keeps_in = false, keeps_out = false;  ///< the product, or products, before its core, and those behind
  bool operator==(const Fp8Plan&) const = default;
};

/// Sizes that all layers of a rank share.
struct LayerShape {
  DType compute = DType::f32;
  int64_t micro_sequences = 1, seq_len = 0, hidden = 0;
  int64_t tensor = 1;                ///< ranks that heads and ffn are cut over
  int64_t rows = 0, local_rows = 0;  ///< M, Ml
  parallel::SequenceCut cut;         ///< of rank 0 of the context ranks
  int expert_ranks = 1;              ///< ranks that share experts
  /// Where experts are whole, each tensor rank sends one of as many parts of the tokens to them; else 1.
  int token_parts = 1;
  /// Whether context ranks exchange their tokens of all heads for all tokens of their heads.
  bool exchanges_heads = false;
};

/// The largest sizes on a rank among its products and attentions; they size the scratch memory.
struct Widest {
  int64_t columns = 0;  ///< of the output of a product, or of a norm
  int64_t depth = 0;    ///< of the input of a product
  kernels::AttentionShape attention;
};

/// A norm at the begin or the end of a sublayer, or before the head.
struct NormPlan {
  kernels::NormKind kind = kernels::NormKind::layernorm;
  float eps = 1e-5f;
  float weight_offset = 0;  ///< added to each weight
  bool operator==(const NormPlan&) const = default;
};

/// The lifetime of a tensor of a sublayer. It determines how many copies a rank holds.
enum class Life : uint8_t {
  input,       ///< the stream that enters the sublayer [Ml, C]; of a layer's first one kept under every
               ///< recomputation
  activation,  ///< forward leaves it for backward: one for each micro-batch in flight, dropped by
               ///< recomputation `full`
  cheap,       ///< the same, dropped by `selective` too, because it is cheap to make again to the same bits
  gradient,    ///< the input half of backward leaves it for the weight half
  late_gradient,  ///< the same, needed only where the weight half runs apart
  layer,          ///< one for each layer, made when its weights change
  host,    ///< what the host reads or writes: one for each micro-batch in flight in its own memory, whatever
           ///< is computed again
  scratch  ///< within one pass; all layers use the same
};

/// `number`: the sublayer's own name of it, an index into Tensors.
struct TensorDeclaration {
  int number = 0;
  Life life = Life::activation;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0;
  bool alone = false;   ///< no communicator sees it, so its rows may have gaps (Arena::take_alone)
  bool whole = false;   ///< its rows are not of tokens: a pass over fewer tokens has all of them
};

/// The tensors of one sublayer for one micro-batch. The sublayer does not know whether a tensor is kept,
/// recomputed or shared.
constexpr int kMostTensors = 57;
using Tensors = std::array<kernels::Matrix, kMostTensors>;
/// Every sublayer declares these two: x [Ml, C], and the gradient of its output as its weight half takes it
/// [M, C]. With products in FP8 it has room for what these see of their operands.
constexpr int kInput = 0, kOutputGradient = 1, kFp8Left = 2, kFp8Right = 3, kFp8Weight = 4, kFirstOwn = 5;

/// Which uses of StageUses a sublayer has: `at` by the places that its parameters declare, -1 for none.
struct SublayerUses {
  std::vector<int> at;
  int use(int place) const { return place >= 0 && place < int(at.size()) ? at[size_t(place)] : -1; }
};

/// Temporaries that every sublayer may use within one pass: [M, C] [Ml, C] [Ml, C].
struct LayerScratch {
  kernels::Matrix partial, local, normed;
  void take(Arena& arena, const LayerShape& s);
};

/// What quantile balancing counts of the experts of a layer in a step; see kernels::CountMargins.
struct Margins {
  int use = -1;  ///< of the bias
  kernels::Matrix sums, range;
};

/// The context of a sublayer's passes, in addition to its own parameters.
struct LayerContext {
  const LayerShape& shape;
  kernels::Backend& backend;
  kernels::Stream& stream;
  parallel::ShardedParams& params;
  parallel::TensorParallel& tp;
  LayerScratch& scratch;
  bool weight_half_follows = true;   ///< backward_weight runs before anything overwrites dout
  float loss_scale = 1;  ///< 1 / targets of a step, times that of the micro-batch: of losses of a layer's own
  /// Host memory for the counts of experts of the layer under way, i32 [sequences, E]; null: nobody asks.
  int32_t* expert_counts = nullptr;
  bool trains = true;                     ///< the pass is of training
  bool counts = true;                     ///< and of a micro-batch that counts (MicroBatch::counts)
  std::span<const Margins> margins = {};  ///< of the rank's layers that count them
  /// Of the micro-batch under way, i32 [M] each; null where documents are ignored: the first token that a
  /// token sees, and its position.
  const int32_t* first_key = nullptr;
  const int32_t* positions = nullptr;
  /// Where sequences are cut; null: a rank has whole sequences.
  const parallel::ContextParallel* cp = nullptr;
  parallel::Communicator* experts = nullptr;  ///< the ranks that share experts; null: each has all
  /// Throws the error of an exchange with any peer that was cut off: the stream goes on behind it with whatever
  /// memory holds.
  std::function<void()> check_exchanges = {};
  const bool* rehearses = nullptr;  ///< not null: where it is true, exchanges move nothing
  /// Of a pass over the tokens behind those that caches hold, forward only; empty: of whole sequences.
  std::span<const CachedRows> cached = {};
  /// The tables of the model's rotary positions.
  std::vector<std::pair<Rotary, const float*>> rotary_tables = {};
  const float* cos_sin(const Rotary& rotary) const;
  RowsPlace rows = {};                   ///< of the micro-batch under way
  uint32_t hadamard_signs = 0;           ///< of the run; see kernels::fp4_mix
  std::span<const uint64_t> noise = {};  ///< of each use; see StageUses
  int context_rank() const { return cp ? cp->cut().rank : 0; }
};

/// The gradients of a micro-batch are added to those of `lane`; the first micro-batch of the lane overwrites
/// them.
struct LanePlace {
  int lane = 0;
  bool first = true;
};

/// One sublayer of one layer on one rank.
class Sublayer {
 public:
  virtual ~Sublayer() = default;

  /// Packs the weights for this device and computes the tensors that depend on them (Life::layer). Call it
  /// after every change of the weights.
  virtual void pack(const LayerContext&) = 0;

  /// x = previous + delta into t[kInput], which already holds it where delta is empty. Returns what is to be
  /// added to x; it lies in scratch until the next sublayer's first product.
  virtual kernels::Matrix forward(const LayerContext&, Tensors& t, kernels::Matrix previous,
                                  kernels::Matrix delta) = 0;
  /// Repeats the forward pass as far as backward needs it; does not compute the value that is added to x.
  virtual void recompute(const LayerContext&, Tensors& t, kernels::Matrix previous,
                         kernels::Matrix delta) = 0;
  /// Computes the tensors of Life::cheap from the others.
  virtual void recompute_cheap(const LayerContext&, Tensors& t) = 0;

  /// dout [Ml, C] -> din [Ml, C]: the gradients of the stream behind and before the sublayer. dout is not
  /// changed, except where both are one buffer. Where the weight half follows at once, gradients that come
  /// with the input's (a norm's) are made here, by the rule of backward_weight; else they wait in t.
  virtual void backward_input(const LayerContext&, Tensors& t, kernels::Matrix dout, kernels::Matrix din,
                              LanePlace) = 0;
  virtual void backward_weight(const LayerContext&, Tensors& t, LanePlace) = 0;
};

}  // namespace trainctl
