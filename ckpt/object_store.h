// Checkpoints in an object store (tier L3): no rename, so COMMIT is the last object to be put, and its PUT is
// the commit point.
//
//     <prefix>/step-00001200.e7.a0/shard-00003-of-00016.safetensors, manifest.json, COMMIT
//     <prefix>/INDEX
//
// A folder of keys without COMMIT is no checkpoint. The epoch (e7) is part of its name: an earlier epoch's
// writer that is still running cannot touch what a later one writes. Nor can a second save of the same step
// and epoch: it takes the next attempt (a1). Of several that are published for a step, the latest epoch and
// attempt counts.
//
// Listings may lag, in both directions. So INDEX holds the names that were published last, each is only
// believed if its COMMIT is there, and what was acknowledged is found at once. INDEX also holds "set aside":
// after a run went back to step S in epoch E, checkpoints of earlier epochs beyond S do not count. The same
// follows without INDEX as soon as a later epoch has published a step at or before theirs.
#pragma once
#include <memory>
#include <string>

#include "ckpt/objects.h"
#include "ckpt/store.h"

namespace trainctl::ckpt {

struct ObjectStoreOptions {
  std::string prefix;                       ///< of all keys, without a slash at its end
  std::string where;                        ///< for messages: "s3://bucket/prefix"
  uint64_t part_bytes = uint64_t(8) << 20;  ///< larger files are put in parts; S3 wants at least 5 MiB
};

/// `client` outlives the store; give it retries (ckpt/objects.h).
std::unique_ptr<Store> object_store(ObjectClient& client, const ObjectStoreOptions& options);

}  // namespace trainctl::ckpt
