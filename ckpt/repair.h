// Repair of a damaged checkpoint from good copies of its chunks.
//
// A chunk is good where both its hashes are those of the manifest: so a copy may come from anywhere that has
// equal bytes, a replica of the same checkpoint, another step in which the chunk has not changed, another
// place in this one. Headers follow from the manifest. A lost or damaged manifest or COMMIT is taken from a
// replica, or follows from what is left; nothing is guessed: a manifest counts only if its SHA-256 is in a
// COMMIT, and one of a replica only if most chunks of this checkpoint are those that it names.
//
// All or nothing: as long as one chunk has no good copy, nothing is written. Each damaged file is then
// written anew next to the old one, synced, and takes its place in one step, COMMIT last: a crash leaves what
// was there, or less damage.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/store.h"

namespace trainctl::ckpt {

struct RepairReport {
  std::vector<VerifyFinding> found;    ///< all damage: per file that is missing or cut, per header, per chunk
  std::vector<VerifyFinding> missing;  ///< of it, what has no good copy; not empty: nothing was written
  std::vector<std::string> rewritten;  ///< files
  std::vector<std::string> foreign;    ///< files that are no part of the checkpoint, left alone
  struct Origin {
    std::string where;
    uint64_t chunks = 0, bytes = 0;
  };
  std::vector<Origin> origins;                      ///< of the chunks that were replaced
  bool is_good() const { return missing.empty(); }  ///< now every byte is good
};

/// Sources are tried in their order; they may be damaged themselves, and any of them may be useless. With
/// `only_look` nothing is written, and the report says what would be. Error(kIo) where the damaged checkpoint
/// cannot be written.
RepairReport repair(StoredFiles& damaged, std::span<const std::unique_ptr<StoredFiles>> sources,
                    bool only_look = false);

}  // namespace trainctl::ckpt
