// ContextParallel: how attention sees whole sequences where ranks have parts of them. Keys and values of all
// tokens are gathered into the order of the sequences, so that a query's result does not depend on the number
// of ranks; their gradients are added over blocks by a balanced binary tree in the order of the blocks, each
// node rounded to the dtype of activations, so that they do not, either.
#pragma once
#include <memory>

#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "parallel/sequence_cut.h"

namespace trainctl::parallel {

class ContextParallel {
 public:
  /// comm: the ranks of a sequence; null: this rank alone. All must outlive this object.
  ContextParallel(const SequenceCut& cut, Communicator* comm, kernels::Backend& backend,
                  kernels::Stream& stream);
  const SequenceCut& cut() const { return cut_; }

  /// own [rows of this rank, C] -> all [sequences * seq_len, C], in the order of tokens. room: as large as
  /// all.
  void gather(kernels::Matrix own, kernels::Matrix room, kernels::Matrix all) const;
  /// of_blocks: the gradients of each block here, [sequences * seq_len, C] each in the order of tokens, one
  /// after another -> own [rows of this rank, C]: those of this rank's rows, added over all blocks.
  /// Overwrites of_blocks; room: as large as one of them.
  void add(kernels::Matrix of_blocks, kernels::Matrix room, kernels::Matrix own) const;

 private:
  kernels::Matrix index(int which) const;

  const SequenceCut cut_;
  Communicator* const comm_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::unique_ptr<kernels::Buffer> indices_;  // i32 [2, tokens]: the row of each token, the token of each row
};

/// Device memory that one takes.
size_t context_index_bytes(const SequenceCut& cut);

}  // namespace trainctl::parallel
