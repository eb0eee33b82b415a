// Attention, also where sequences are cut over context ranks: then each chunk of queries against the keys and
// values of whole sequences, which are gathered for it, forward and backward; their gradients go back to
// their ranks. Or ranks exchange tokens for heads: head_attention.h.
#pragma once
#include "runtime/model/sublayers/head_attention.h"

namespace trainctl {

class CutAttention {
 public:
  /// Numbers of its tensors. N tokens of whole sequences, K columns of keys: keys and values of own rows [M,
  /// 2 K]; in the order of ranks and in that of tokens [N, 2 K]; gradients of each block here [blocks * N, 2
  /// K], and of a block's second chunk [N, 2 K].
  struct Numbers {
    int own, of_ranks, all, of_blocks, of_chunk;
    HeadAttention::Numbers heads;
    bool keeps_heads = false;  ///< where heads are exchanged: forward leaves them for backward
  };
  /// on_rank: of a tensor rank.
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                      const kernels::AttentionShape& on_rank);

  /// op, of this rank's rows: q, k, v, out and lse, first_key of its mask; its shape is that of a chunk
  /// (chunk_shape).
  static void forward(const LayerContext& c, Tensors& t, const Numbers& n,
                      const kernels::AttentionForward& op);
  static void backward(const LayerContext& c, Tensors& t, const Numbers& n,
                       const kernels::AttentionBackward& op);
};

/// The shape of attention on a rank: of a chunk of queries of each sequence where they are cut.
kernels::AttentionShape chunk_shape(kernels::AttentionShape of_sequences, const parallel::SequenceCut& cut);

}  // namespace trainctl
