// ContextParallel: how attention sees whole sequences where ranks have parts of them. Keys and values of all
// tokens are gathered into the order of the sequences, so that a query's result does not depend on the number
// of ranks; their gradients are added over blocks by a balanced binary tree in the order of the blocks, each
// node rounded to the dtype of activations, so that they do not, either. Or ranks exchange their tokens of
// all heads for all tokens of their heads: then each adds over all blocks itself, by the same tree.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "parallel/sequence_cut.h"

namespace trainctl::parallel {

/// The same values of heads in two cuts over R ranks. All matrices have one dtype.
struct HeadExchange {
  std::vector<kernels::Matrix> of_rows;  ///< [rows of this rank, C_i] of all heads; R divides each C_i
  kernels::Matrix of_heads;  ///< [tokens, sum of C_i / R]: the r-th part of each C_i on rank r, in rank order
  kernels::Matrix room;      ///< as large; overwritten
};

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

  /// of_rows -> of_heads of each, in one exchange. row_numbers, i32, one of each row -> all_numbers, of all
  /// ranks' rows in rank order; null: none.
  void to_heads(std::span<const HeadExchange> exchanges, const int32_t* row_numbers,
                int32_t* all_numbers) const;
  /// of_heads -> of_rows of each, in one exchange.
  void to_rows(std::span<const HeadExchange> exchanges) const;
  /// of_ranks [tokens, C], the rows of one rank after those of another -> all, in the order of tokens.
  void order(kernels::Matrix of_ranks, kernels::Matrix all) const;
  /// As add, of the gradients of all blocks of a sequence -> of_ranks [tokens, C]. No exchange.
  void add_all(kernels::Matrix of_blocks, kernels::Matrix of_ranks) const;

 private:
  kernels::Matrix index(int which) const;
  kernels::Matrix add_parts(kernels::Matrix of, int64_t rows, int count) const;
  int ranks() const { return cut_.ranks; }

  const SequenceCut cut_;
  Communicator* const comm_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::unique_ptr<kernels::Buffer> indices_;  // i32 [2, tokens]: the row of each token, the token of each row
};

/// Device memory that one takes.
size_t context_index_bytes(const SequenceCut& cut);

}  // namespace trainctl::parallel
