// One transformer block, forward and backward in two halves, written once for GPT-2 and Llama.
//
//   x -> norm1 -> qkv -> (rope) -> attention -> proj -> + x = mid
//   mid -> norm2 -> up -> gelu | swiglu -> down -> + mid
//
// Letters: M tokens of a micro-batch, Ml the rows of them that stand here outside the cut parts (TensorParallel), C hidden size,
// Q = (heads + 2 kv_heads) * head_dim / tp, A = heads * head_dim / tp, F = ffn_size / tp, U = F (gelu) or 2F (swiglu).
#pragma once
#include <memory>

#include "kernels/backend.h"
#include "parallel/sharded_params.h"
#include "parallel/tensor_parallel.h"
#include "runtime/model/arena.h"
#include "runtime/model/stage_uses.h"

namespace trainctl {

/// Sizes that all blocks of a rank share.
struct BlockShape {
  Family family = Family::gpt2;
  DType compute = DType::f32;
  int64_t micro_sequences = 1, seq_len = 0, hidden = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;  // of this tp rank
  int64_t ffn = 0;                                // of this tp rank
  int64_t rows = 0, local_rows = 0;               // M, Ml
  float norm_eps = 1e-5f;
  Recompute recompute = Recompute::none;
  bool gated() const { return family == Family::llama; }
  int64_t qkv_cols() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t up_cols() const { return gated() ? 2 * ffn : ffn; }
  kernels::NormKind norm() const {
    return family == Family::llama ? kernels::NormKind::rmsnorm : kernels::NormKind::layernorm;
  }
  kernels::AttentionShape attention() const;
};
BlockShape block_shape(const JobSpec& job);

/// What forward leaves for backward, of one micro-batch. x is the block's input. Recomputation `full` keeps x alone; `selective` keeps what
/// products and attention made and drops what is cheap to make again: the norms' outputs, and act where it is swiglu's (gelu's may come
/// out of the product before it is rounded, so it is kept: recomputing must not change a bit).
struct BlockActivations {
  kernels::Matrix x;                                          // [Ml, C]
  kernels::Matrix norm1, qkv, attention, mid, norm2, up, act; // [M, C] [M, Q] [M, A] [Ml, C] [M, C] [M, U] [M, F]
  float *stats1 = nullptr, *lse = nullptr, *stats2 = nullptr; // [Ml, 2] [M, heads] [Ml, 2]
  void take_input(Arena& arena, const BlockShape& s) { x = arena.take(s.compute, s.local_rows, s.hidden); }
  void take_rest(Arena& arena, const BlockShape& s);
  void take_cheap(Arena& arena, const BlockShape& s);   // what `selective` drops
};

/// What the input half of backward leaves for the weight half.
struct BlockGradients {
  kernels::Matrix out, up, mid, qkv;                          // [M, C] [M, U] [M, C] [M, Q]
  kernels::Matrix norm1_weight, norm1_bias, norm2_weight, norm2_bias;  // f32 [1, C], where the weight half comes later
  void take(Arena& arena, const BlockShape& s, bool split);
};

/// The products' biases in the dtype of activations, for devices whose products take them so; made anew when weights change.
struct BlockBiases {
  kernels::Matrix qkv, proj, up, down;
  void take(Arena& arena, const BlockShape& s);
};

/// Temporaries that one block at a time uses.
struct BlockScratch {
  kernels::Matrix partial, local, normed, act, attention;     // [M, C] [Ml, C] [Ml, C] [M, F] [M, A]
  void take(Arena& arena, const BlockShape& s);
};

/// Everything a block works with besides its own parameters.
struct BlockContext {
  const BlockShape& shape;
  kernels::Backend& backend;
  kernels::Stream& stream;
  parallel::ShardedParams& params;
  parallel::TensorParallel& tp;
  BlockScratch& scratch;
  const float* cos_sin = nullptr;                             // [T, D], Llama only
  bool weight_half_follows = true;                            // backward_weight runs before anything overwrites dout
};

class Block {
 public:
  /// biases: memory for them.
  Block(const BlockUses& uses, const BlockContext& context, const BlockBiases& biases);

  /// Packs the weights and converts the biases for this device; after every change of them.
  void pack(const BlockContext&);

  /// x = previous + delta (delta empty: a.x already holds the input). Returns the block's output as a pair to be added: a.mid
  /// and the returned delta, which stands in scratch until the next block's first product.
  kernels::Matrix forward(const BlockContext&, BlockActivations& a, kernels::Matrix previous, kernels::Matrix delta);
  /// Forward again from a.x, up to what backward needs.
  void recompute(const BlockContext&, BlockActivations& a);
  /// With `selective`: what backward_weight needs and forward did not keep.
  void recompute_cheap(const BlockContext&, BlockActivations& a);

  /// dout [Ml, C] -> din [Ml, C] (another buffer); fills g. dout is not changed. Where the weight half follows at once, the norms'
  /// gradients of `lane` are made here, by the rule of backward_weight; else they wait in g.
  void backward_input(const BlockContext&, const BlockActivations& a, BlockGradients& g, kernels::Matrix dout,
                      kernels::Matrix din, int lane, bool first);
  /// Adds to the gradients of `lane`; overwrites them when `first` micro-batch of the lane.
  void backward_weight(const BlockContext&, const BlockActivations& a, const BlockGradients& g, int lane, bool first);

 private:
  void forward_until_act(const BlockContext&, BlockActivations& a, kernels::Matrix previous, kernels::Matrix delta);
  void normalise(const BlockContext&, kernels::Matrix x, kernels::Matrix delta, int weight, int bias,
                 kernels::Matrix sum, kernels::Matrix out, float* stats);

  /// The bias of a product; and of one whose partial sums are joined afterwards: tp rank 0 alone adds it.
  kernels::Matrix bias(const BlockContext&, int use, const kernels::Matrix& converted) const;
  kernels::Matrix bias_once(const BlockContext&, int use, const kernels::Matrix& converted) const;

  BlockUses uses_;
  BlockBiases biases_;
  std::unique_ptr<kernels::PackedWeight> qkv_, proj_, up_, down_;
};

/// A vector parameter's compute copy or gradient as [1, n]; empty when use < 0.
kernels::Matrix vector_weight(const parallel::ShardedParams&, int use);
kernels::Matrix vector_gradient(const parallel::ShardedParams&, int use, int lane);
/// dst += src, or dst = src when `overwrite`; nothing when either is empty.
void accumulate(const BlockContext&, kernels::Matrix src, kernels::Matrix dst, bool overwrite);

}  // namespace trainctl
