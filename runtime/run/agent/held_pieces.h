// HeldPieces: what an agent does with the pieces of the state in its node's memory (ckpt/pieces.h): it owns
// their folder and removes what must not be loaded any more.
#pragma once
#include <memory>
#include <string>

#include "ckpt/memory_folder.h"
#include "runtime/base/problem.h"
#include "runtime/run/wire/node_wire.h"

namespace trainctl {

class HeldPieces {
 public:
  /// Takes the folder that an agent before has left, if there is one. Throws nothing.
  HeldPieces(std::string run_directory, std::string node);

  /// Makes the folder if it is not there, and removes the pieces that the epoch of `order` makes invalid:
  /// those of steps after its first, and those of other numbers of ranks, except for the set that it loads.
  /// Does not throw; the problem is why this node keeps no pieces.
  Problem begin_epoch(const wire::StartOrder& order);
  /// The folder; "": there is none.
  const std::string& folder() const;
  /// Removes the pieces of other numbers of ranks than `ranks`.
  void keep_only(int ranks);
  /// Whether end() keeps the pieces, so that a resume goes on from them.
  void keep_at_end(bool keep) { keeps_at_end_ = keep; }
  /// Removes everything, unless there are pieces to keep. Call it when no rank is left.
  void end();

 private:
  bool empty() const;
  const std::string run_directory_, node_;
  std::unique_ptr<ckpt::MemoryFolder> folder_;
  bool keeps_at_end_ = false;
};

}  // namespace trainctl
