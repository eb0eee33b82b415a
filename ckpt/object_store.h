// Checkpoints in an object store (tier L3). There is no rename, so COMMIT is the last object that is put, and
// its PUT is the commit point.
//
//     <prefix>/step-00001200.e7.a0.5f3a9c21/shard-00003-of-00016.safetensors, manifest.json, COMMIT
//     <prefix>/INDEX
//
// A folder of keys without COMMIT is not a checkpoint. The epoch (e7) is part of its name, so a writer of an
// earlier epoch that still runs cannot change the files of a later one. A second save of the same step and
// epoch uses the next attempt (a1). If several are published for a step, the latest epoch and attempt counts.
// A copy works in a folder with a word of its writer (5f3a9c21), so two copies of a checkpoint at once never
// meet; both may be published, and then one of them counts.
//
// Listings may lag: they may miss new objects and show removed ones. So INDEX has the names that were
// published last, and a name counts only if its COMMIT exists. Thus an acknowledged checkpoint is found at
// once. INDEX also has an entry "set aside" of each epoch that began: after epoch E began from step S,
// checkpoints of earlier epochs after S do not count. Without INDEX the same holds as soon as a later epoch
// has published a step at or before theirs.
//
// Two writers: INDEX is replaced only if it is still what was read (If-Match), else it is read and changed
// again. A writer of an older epoch than one that has begun there neither publishes, nor changes INDEX, nor
// removes. Who removes the objects of an upload that has no COMMIT first puts an empty COMMIT, which stays:
// COMMIT is put only where none is (If-None-Match), so that upload, if its writer lives, ends without
// success. Where the store refuses conditions, the writer looks immediately before it writes.
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
  /// Of the caller's run: once a newer one has begun in this store, the caller is out of date.
  /// UINT64_MAX: the caller is no supervisor.
  uint64_t epoch = UINT64_MAX;
  std::string word = {};  ///< hex digits that no other writer has; "": the caller is the only one that copies
};

/// A store that uses `client`, which must outlive it. Pass a client with retries (retrying() in
/// ckpt/objects.h).
std::unique_ptr<Store> object_store(ObjectClient& client, const ObjectStoreOptions& options);

/// Tries with the object `key`, which is there, whether the store keeps to the conditions of put_if. The
/// object is changed.
bool keeps_conditions(ObjectClient& client, const std::string& key);

}  // namespace trainctl::ckpt
