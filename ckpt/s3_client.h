// The S3 API over HTTP: ObjectClient on libcurl, which is loaded when the first client is made.
//
// A program built without curl's header has no_s3_client.cpp instead, whose clients cannot be made.
// Credentials go into signatures only; no message and no record holds them.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "ckpt/objects.h"
#include "ckpt/s3_sign.h"
#include "runtime/base/file_system.h"

namespace trainctl::ckpt {

struct S3Options {
  std::string endpoint;  ///< "https://s3.eu-central-1.amazonaws.com", "http://127.0.0.1:9000"
  std::string region = "us-east-1";
  std::string bucket;  ///< addressed as a part of the path, as every compatible store understands
  S3Credentials credentials;
  double connect_timeout_s = 10;
  double idle_timeout_s = 30;  ///< a request in which no byte moves for so long has failed
  /// Asked during a request, at least about once a second; true: the request fails at once. Empty: never.
  std::function<bool()> is_given_up = {};
};

/// One request at a time; not thread-safe. `clock` outlives it. Error(kUsage) where libcurl is missing.
std::unique_ptr<ObjectClient> s3_client(const S3Options& options, Clock& clock);

/// The value of an environment variable, "" without.
using Environment = std::function<std::string(const std::string&)>;
std::string process_environment(const std::string& name);

/// From AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; else from the profile AWS_PROFILE
/// (default: "default") of AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials. Error(kUsage) says where it
/// looked.
S3Credentials s3_credentials(FileSystem& fs, const Environment& environment);
/// For "s3://bucket/prefix": the bucket of it, credentials as above, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL
/// (default: AWS of the region), AWS_REGION or AWS_DEFAULT_REGION (default: us-east-1).
S3Options s3_options(FileSystem& fs, const Environment& environment, const std::string& bucket);

}  // namespace trainctl::ckpt
