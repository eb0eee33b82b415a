// A place that a user names: a folder of checkpoints, or s3://bucket/prefix.
#pragma once
#include <memory>
#include <string>

#include "ckpt/objects.h"
#include "ckpt/s3_client.h"
#include "ckpt/store.h"

namespace trainctl::ckpt {

/// A store with what it stands on.
struct OpenPlace {
  std::unique_ptr<ObjectClient> requests, retried;  ///< of an object store
  std::unique_ptr<Store> store;
};

bool is_object_place(const std::string& place);  ///< begins with s3://

/// For an object store.
struct PlaceOptions {
  RetryLimits retries = {};
  std::function<bool()> is_given_up = {};  ///< as in S3Options
  uint64_t epoch = UINT64_MAX;             ///< as in ObjectStoreOptions
};

/// Nothing is read yet. Error(kUsage): no bucket, no credentials, no libcurl. `fs` and `clock` outlive it.
OpenPlace open_place(FileSystem& fs, Clock& clock, const Environment& environment, const std::string& place,
                     const PlaceOptions& options = {});
/// The same where a person waits: Error(kIo), with what to check, if an object store does not answer in
/// seconds.
OpenPlace open_reached_place(FileSystem& fs, Clock& clock, const Environment& environment,
                             const std::string& place);

}  // namespace trainctl::ckpt
