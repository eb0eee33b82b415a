// The cut of sequences over context ranks. A sequence of T tokens is 2 B chunks of equal length, where B is
// the number of blocks; block i has chunks i and 2 B - 1 - i, so that all blocks have equally much causal
// attention. A rank has a run of neighbouring blocks. The number of blocks is fixed when a run is born, so
// that what is added over blocks, by one tree, does not depend on how many ranks there are. Pure. Source of
// the pairing: zigzag, e.g. Llama 3, arXiv:2407.21783, section 3.3.2.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/base/error.h"

namespace trainctl::parallel {

struct SequenceCut {
  int blocks = 1, ranks = 1, rank = 0;  ///< blocks: of a sequence, a multiple of ranks
  int64_t sequences = 1, seq_len = 0;   ///< of a micro-batch; seq_len: a multiple of chunks()

  bool exists() const { return blocks > 1; }
  int64_t chunks() const { return blocks > 1 ? 2 * blocks : 1; }
  int blocks_here() const { return blocks / ranks; }
  int64_t chunk_tokens() const { return seq_len / chunks(); }
  int64_t tokens_here() const { return seq_len / ranks; }     ///< of a sequence
  int64_t rows() const { return sequences * tokens_here(); }  ///< of a micro-batch, on a rank
  int64_t block_rows() const { return rows() / blocks_here(); }
  int64_t chunk_rows() const { return sequences * chunk_tokens(); }

  /// The same blocks on one rank. Its rows are those of all ranks, one rank after another.
  SequenceCut of_one_rank() const { return {.blocks = blocks, .sequences = sequences, .seq_len = seq_len}; }
  /// Chunk `half` (0 or 1) of block `block` of those of rank `of`: which one it is of the sequence.
  int64_t chunk(int of, int block, int half) const {
    const int64_t at = int64_t(of) * blocks_here() + block;
    return half == 0 ? at : chunks() - 1 - at;
  }
  /// Of each row of a rank its token, sequence * seq_len + place. A rank's rows are chunk by chunk, block by
  /// block; those of a chunk sequence by sequence.
  std::vector<int32_t> tokens_of(int of) const {
    std::vector<int32_t> tokens;
    tokens.reserve(size_t(rows()));
    if (!exists())
      for (int64_t i = 0; i < rows(); ++i) tokens.push_back(int32_t(i));
    for (int block = 0; exists() && block < blocks_here(); ++block)
      for (int half = 0; half < 2; ++half)
        for (int64_t s = 0; s < sequences; ++s)
          for (int64_t t = 0; t < chunk_tokens(); ++t)
            tokens.push_back(int32_t(s * seq_len + chunk(of, block, half) * chunk_tokens() + t));
    ENSURE(int64_t(tokens.size()) == rows());
    return tokens;
  }
};

}  // namespace trainctl::parallel
