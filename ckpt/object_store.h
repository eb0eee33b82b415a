// Checkpoints in an object store (tier L3). There is no rename, so COMMIT is the last object that is put, and
// its PUT is the commit point.
//
//     <prefix>/step-00001200.e7.a0/shard-00003-of-00016.safetensors, manifest.json, COMMIT
//     <prefix>/INDEX
//
// A folder of keys without COMMIT is not a checkpoint. The epoch (e7) is part of its name, so a writer of an
// earlier epoch that still runs cannot change the files of a later one. A second save of the same step and
// epoch uses the next attempt (a1). If several are published for a step, the latest epoch and attempt counts.
//
// Listings may lag: they may miss new objects and show removed ones. So INDEX has the names that were
// published last, and a name counts only if its COMMIT exists. Thus an acknowledged checkpoint is found at
// once. INDEX also has entries "set aside": after a run went back to step S in epoch E, checkpoints of
// earlier epochs after S do not count. Without INDEX the same holds as soon as a later epoch has published a
// step at or before theirs.
#pragma once
#include <memory>
#include <string>

#include "ckpt/objects.h"
#include "ckpt/store.h"

namespace trainctl::ckpt {

struct ObjectStoreOptions {
  std::string prefix;                       ///< prefix of all keys, without a slash at its end
  std::string where;                        ///< for messages: "s3://bucket/prefix"
  uint64_t part_bytes = uint64_t(8) << 20;  ///< larger files are put in parts; S3 wants at least 5 MiB
};

/// A store that uses `client`, which must outlive it. Pass a client with retries (retrying() in
/// ckpt/objects.h).
std::unique_ptr<Store> object_store(ObjectClient& client, const ObjectStoreOptions& options);

}  // namespace trainctl::ckpt
