// HeldPieces: what an agent does with the pieces of the state in its node's memory (ckpt/pieces.h): it owns
// their folder, says what is there, notes for its ranks where other nodes have theirs, and removes what must
// not be loaded any more.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/memory_folder.h"
#include "ckpt/open_pieces.h"
#include "ckpt/pieces.h"
#include "runtime/base/problem.h"
#include "runtime/run/pieces/remote_memory.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class HeldPieces {
 public:
  /// Takes the folder that an agent before has left, if there is one. Throws nothing.
  HeldPieces(std::string run_directory, std::string node);

  /// Makes the folder if it is not there, and removes the pieces that the epoch of `order` makes invalid:
  /// those of steps after its first, and, except for the set that it loads, those of other numbers of ranks
  /// and of ranks that are neither on this node nor on the one whose copies it holds. Does not throw; the
  /// problem is why this node keeps no pieces.
  Problem begin_epoch(const wire::StartOrder& order);
  /// Leaves a sign of life in the folder (MemoryFolder::note_alive).
  void note_alive() {
    if (folder_) folder_->note_alive();
  }
  /// What is there.
  wire::PiecesAnswer list() const;
  /// The folder; "": there is none.
  const std::string& folder() const;
  /// Removes the pieces of other numbers of ranks than `ranks`, and of ranks whose pieces have no place here.
  void keep_only(int ranks);
  /// Whether end() keeps the pieces, so that a resume goes on from them.
  void keep_at_end(bool keep) { keeps_at_end_ = keep; }
  /// Removes everything, unless there are pieces to keep. Call it when no rank is left.
  void end();

 private:
  bool is_here(int rank) const;
  const std::string run_directory_, node_;
  std::unique_ptr<ckpt::MemoryFolder> folder_;
  /// Of the newest epoch: the ranks on this node, none if they are not known, and those whose second copies
  /// it holds.
  wire::RankRange here_, partner_of_;
  bool keeps_at_end_ = false;
};

/// The pieces that nodes hold of a rank, for the ranks of this node, as begin_epoch has noted it in `folder`. Each
/// call opens a connection, within `limit_s`, which the result keeps. Error(kIo); also if no node holds them at
/// all.
///   read_bytes   counts what is read from them
ckpt::OtherPieces pieces_elsewhere(FileSystem& fs, const std::string& folder, int ranks, double limit_s,
                                   std::shared_ptr<std::atomic<uint64_t>> read_bytes = nullptr);
/// Opens the memory for the second copy of a rank's pieces on the partner of this node, as begin_epoch has
/// noted it in `folder`; empty: there is no partner. A call: see remote_memory_to_write.
std::function<std::unique_ptr<ckpt::NodeMemory>(uint64_t bytes)> partner_memory(FileSystem& fs,
                                                                                const std::string& folder,
                                                                                const PieceOfRank& piece,
                                                                                double limit_s);

}  // namespace trainctl
