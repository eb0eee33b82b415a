// Opens the part of a checkpoint that one rank reads. The supervisor has opened the whole of it before
// (Checkpoint::open), so a rank looks at no shard but those that hold what it wants, and keeps no other row
// of the manifest: what it costs does not grow with the number of ranks that saved, except for reading the
// manifest once.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "ckpt/checkpoint.h"

namespace trainctl::ckpt {

struct WantedBox {
  std::string name;
  Role role = Role::master;
  parallel::Box box;
};

/// Opens what `wanted` needs of the checkpoint in `files`. state(), tensors() and root_hash() are those of
/// the whole checkpoint; files() has the shards that hold a part of `wanted`, each with these chunks only; a
/// read of anything else is Error(kCheckpoint). Whether a shard is there, in its size, is looked at when it
/// is first read.
///   manifest_sha256   of the checkpoint that the supervisor chose (see below); "": COMMIT says it
/// Error(kCheckpoint), one sentence: there is no such checkpoint, or its manifest is another one.
std::unique_ptr<Checkpoint> open_part(std::unique_ptr<StoredFiles> files, std::span<const WantedBox> wanted,
                                      const std::string& manifest_sha256);

/// The SHA-256 of the manifest of a published checkpoint, in hex, as its COMMIT has it.
std::string manifest_sha256(StoredFiles& files);

}  // namespace trainctl::ckpt
