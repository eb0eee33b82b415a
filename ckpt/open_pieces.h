// Opens the pieces that ranks kept in memory (ckpt/pieces.h) as a checkpoint.
#pragma once
#include <functional>
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

/// The pieces of a rank in another place, e.g. on another node: copy 0, 1, ...; empty: there are no more.
/// Error(kIo): that place cannot be reached.
using OtherPieces = std::function<std::vector<FoundPiece>(int rank, size_t copy)>;

/// Makes a checkpoint of the pieces of `set` among `found`; others are ignored. Its manifest is made from
/// their receipts. As with any checkpoint, the hash of each chunk is verified when it is read. The result
/// keeps the memory of the pieces mapped. Error(kCheckpoint), one sentence, if a piece is missing or
/// damaged, two pieces contradict each other, or their chunks have a hole or an overlap.
///   others   where a chunk that is damaged is looked for; empty: nowhere
std::unique_ptr<Checkpoint> open_pieces(const std::vector<FoundPiece>& found, const PieceSet& set,
                                        Pieces need, const OtherPieces& others = {});

}  // namespace trainctl::ckpt
