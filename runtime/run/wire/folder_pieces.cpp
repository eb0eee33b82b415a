#include "runtime/run/wire/folder_pieces.h"

#include "ckpt/pieces.h"

namespace trainctl::wire {

std::vector<HeldPiece> folder_pieces(FileSystem& fs, const std::string& folder) {
  std::vector<HeldPiece> pieces;
  for (const ckpt::FoundPiece& found : ckpt::list_pieces(fs, folder)) {
    if (found.step < 0) continue;  // the file holds no state
    HeldPiece held{.step = found.step, .rank = found.rank, .ranks = found.ranks, .problem = found.problem};
    if (found.piece) {
      held.epoch = found.piece->state.epoch;
      held.run_id = found.piece->state.run_id;
      held.bytes = found.piece->receipt.file_bytes;
    }
    pieces.push_back(std::move(held));
  }
  return pieces;
}

}  // namespace trainctl::wire
