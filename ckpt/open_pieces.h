// Opens the pieces that ranks kept in memory (ckpt/pieces.h) as a checkpoint.
#pragma once
#include <memory>
#include <vector>

#include "ckpt/pieces.h"

namespace trainctl::ckpt {

/// The pieces of one state.
struct PieceSet {
  int64_t step = 0;
  uint64_t epoch = 0;
  int ranks = 1;
};

/// How much of a set must be there.
enum class Pieces {
  all,         ///< every piece; their chunks must tile every tensor
  those_here,  ///< at least one; Checkpoint::has says what they hold
};

/// Makes a checkpoint of the pieces of `set` among `found`; others are ignored. Its manifest is made from
/// their receipts. As with any checkpoint, the hash of each chunk is verified when it is read. The result
/// keeps the memory of the pieces mapped. Error(kCheckpoint), one sentence, if a piece is missing or
/// damaged, two pieces contradict each other, or their chunks have a hole or an overlap.
std::unique_ptr<Checkpoint> open_pieces(const std::vector<FoundPiece>& found, const PieceSet& set,
                                        Pieces need);

}  // namespace trainctl::ckpt
