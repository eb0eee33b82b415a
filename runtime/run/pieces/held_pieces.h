// HeldPieces: what an agent does with the pieces of the state in its node's memory (ckpt/pieces.h): it owns
// their folder, says what is there, notes for its ranks where other nodes have theirs, and removes what must
// not be loaded any more.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/memory_folder.h"
#include "ckpt/pieces.h"
#include "runtime/base/problem.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class HeldPieces {
 public:
  /// Takes the folder that an agent before has left, if there is one. Throws nothing.
  HeldPieces(std::string run_directory, std::string node);

  /// Makes the folder if it is not there, and removes the pieces that the epoch of `order` makes invalid:
  /// those of steps after its first, and, except for the set that it loads, those of other numbers of ranks
  /// and of ranks that are not on this node. Does not throw; the problem is why this node keeps no pieces.
  Problem begin_epoch(const wire::StartOrder& order);
  /// What is there.
  wire::PiecesAnswer list() const;
  /// The folder; "": there is none.
  const std::string& folder() const;
  /// Removes the pieces of other numbers of ranks than `ranks`, and of ranks that are not on this node.
  void keep_only(int ranks);
  /// Whether end() keeps the pieces, so that a resume goes on from them.
  void keep_at_end(bool keep) { keeps_at_end_ = keep; }
  /// Removes everything, unless there are pieces to keep. Call it when no rank is left.
  void end();

 private:
  bool is_here(int rank) const;
  const std::string run_directory_, node_;
  std::unique_ptr<ckpt::MemoryFolder> folder_;
  wire::RankRange here_;  ///< the ranks of the newest epoch on this node; none: not known
  bool keeps_at_end_ = false;
};

/// The pieces that other nodes hold of a rank, for the ranks of this node; as begin_epoch has noted it in
/// `folder`. Each call opens a connection, within `limit_s`, which the result keeps; Error(kIo).
std::function<std::vector<ckpt::FoundPiece>(int rank)> pieces_elsewhere(FileSystem& fs,
                                                                        const std::string& folder, int ranks,
                                                                        double limit_s);

}  // namespace trainctl
