// Attention where context ranks exchange their tokens of all heads for all tokens of their heads (Ulysses,
// arXiv:2309.14509): each rank computes what one rank with all context blocks computes of these heads, chunk
// by chunk, so that the bits are those of gathered keys and values on every number of ranks.
#pragma once
#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

class HeadAttention {
 public:
  /// Numbers of its tensors, on each of R ranks. N tokens of whole sequences, columns of Q and out: A, of
  /// keys: K, H heads. Queries, keys and values [N, (A + 2 K) / R], output [N, A / R] and lse [N, H / R] of
  /// its heads; the first key of each row [N, 1]; their gradients; room for what is sent.
  struct Numbers {
    int heads, out, lse, first_keys, gradient, out_gradient, room, lse_room;
  };
  /// Tensors in the order of tokens and of blocks, as those of CutAttention.
  struct Ordered {
    kernels::Matrix all, of_blocks, of_chunk;
  };
  /// keeps: forward leaves what backward reads; else backward exchanges it again.
  static void declare(std::vector<TensorDeclaration>& list, const LayerShape& s, const Numbers& n,
                      const kernels::AttentionShape& on_rank, bool keeps);
  static void forward(const LayerContext& c, Tensors& t, const Numbers& n, const Ordered& ordered, bool keeps,
                      const kernels::AttentionForward& op);
  static void backward(const LayerContext& c, Tensors& t, const Numbers& n, const Ordered& ordered,
                       bool keeps, const kernels::AttentionBackward& op);
};

}  // namespace trainctl
