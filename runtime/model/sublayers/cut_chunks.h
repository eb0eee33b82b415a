// Attention of the chunks of a cut sequence: each chunk of queries to the keys and values of whole sequences.
#pragma once
#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

/// op: q, out and lse of the rows of a rank of `cut`, first_key of its mask likewise; the columns of k and v.
/// all: keys and values of all tokens, in their order.
void forward_chunks(const LayerContext& c, const parallel::SequenceCut& cut, const kernels::Matrix& all,
                    const kernels::AttentionForward& op);
/// of_blocks: the gradients of keys and values from the queries of each block here, one after another, in the
/// order of tokens; of_chunk: room for those of a chunk. Writes op.dq, and not op.dk and op.dv.
void backward_chunks(const LayerContext& c, const parallel::SequenceCut& cut, const kernels::Matrix& all,
                     const kernels::Matrix& of_blocks, const kernels::Matrix& of_chunk,
                     const kernels::AttentionBackward& op);

}  // namespace trainctl
