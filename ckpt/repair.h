// Repairs a damaged checkpoint from good copies of its chunks.
//
// A chunk is good if both its hashes equal those in the manifest. So a copy may come from every place with
// equal bytes: a replica of the checkpoint, another step in which the chunk has not changed, another place in
// this checkpoint. Headers are computed from the manifest. A lost or damaged manifest or COMMIT is taken from
// a replica or computed from the other files. Nothing is guessed: a manifest is used only if its SHA-256 is
// in a COMMIT, and that of a replica only if it names most chunks of this checkpoint.
//
// If one chunk has no good copy, nothing is written. Otherwise each damaged file is written again next to the
// old one, synced, and replaces it atomically, COMMIT last. So a crash leaves the checkpoint as it was, or
// with less damage.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/store.h"

namespace trainctl::ckpt {

struct RepairReport {
  std::vector<VerifyFinding> found;    ///< all damage: missing or truncated files, headers, chunks
  std::vector<VerifyFinding> missing;  ///< damage without a good copy; if not empty, nothing was written
  std::vector<std::string> rewritten;  ///< names of the files that were written
  std::vector<std::string> foreign;    ///< files that do not belong to the checkpoint; not changed
  struct Origin {
    std::string where;
    uint64_t chunks = 0, bytes = 0;
  };
  std::vector<Origin> origins;                      ///< where the copies of the replaced chunks came from
  bool is_good() const { return missing.empty(); }  ///< every byte is good after the repair
  /// Nothing is known to be damaged: what was found cannot be read, for now.
  bool is_unread() const;
};

/// Repairs `damaged`. Tries the sources in their order; a source may be damaged too or have no useful chunk.
/// With `only_look`, writes nothing and reports what it would do. Error(kIo) if the damaged checkpoint cannot
/// be written.
RepairReport repair(StoredFiles& damaged, std::span<const std::unique_ptr<StoredFiles>> sources,
                    bool only_look = false);

}  // namespace trainctl::ckpt
