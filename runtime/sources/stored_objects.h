// StoredObject: a text of a corpus in an object store, found by an s3:// URL that a user gives.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/sources/bucket_clients.h"

namespace trainctl {

/// An object as it was when the work began.
struct StoredObject {
  std::string url, bucket, key;
  uint64_t bytes = 0;
  std::string version;  ///< ObjectInfo::version
};

bool is_object_url(const std::string& path);  ///< begins with s3://

/// What the inputs of a command name.
struct FoundInputs {
  std::vector<std::string> paths;     ///< in order: files as given, objects by their URLs
  std::vector<StoredObject> objects;  ///< those of `paths`, each once, in order
  std::vector<std::string> left_out;  ///< URLs below a prefix whose ending names no text
};
/// Asks the store for the objects that `inputs` name: `s3://bucket/key`, or all below `s3://bucket/prefix/`
/// whose names `is_text` takes, in the order of their keys as bytes. Error(kUsage): no URL of that form.
/// Error(kData): no such bucket, object or text below a prefix. Error(kIo): the store refuses, or does not
/// answer.
FoundInputs find_inputs(const ObjectAccess& access, const std::vector<std::string>& inputs,
                        const std::function<bool(const std::string& name)>& is_text);

/// What a request for `url` failed with, as one sentence that says what to do.
Error object_error(const ObjectAccess& access, const std::string& url, const ckpt::ObjectError& error);

}  // namespace trainctl
