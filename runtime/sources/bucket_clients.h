// BucketClients: how the objects of buckets are reached, and the clients of one thread that reach them.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "ckpt/objects.h"
#include "ckpt/s3_client.h"
#include "runtime/base/file_system.h"

namespace trainctl {

/// How the objects of buckets are reached. Thread-safe if `clock` is.
struct ObjectAccess {
  Clock& clock;
  std::string endpoint;  ///< for messages
  /// Makes a client of a bucket; its requests fail soon after `is_given_up` says true. Error(kUsage).
  std::function<std::unique_ptr<ckpt::ObjectClient>(const std::string& bucket,
                                                    std::function<bool()> is_given_up)>
      client;
  ckpt::RetryLimits retries = {};
};
/// By the S3 API, with the settings and credentials that checkpoint.store takes. Error(kUsage): there are no
/// credentials. `fs` and `clock` outlive it.
ObjectAccess s3_access(FileSystem& fs, Clock& clock,
                       const ckpt::Environment& environment = ckpt::process_environment);

/// One client for each bucket, made when it is first asked for, which repeats requests. Not thread-safe.
class BucketClients {
 public:
  /// `access` and `clock`, which has the waits between tries, outlive it.
  BucketClients(const ObjectAccess& access, Clock& clock, std::function<bool()> is_given_up = {})
      : access_(access), clock_(clock), is_given_up_(std::move(is_given_up)) {}
  ckpt::ObjectClient& of(const std::string& bucket);  ///< Error(kUsage)

 private:
  struct Client {
    std::unique_ptr<ckpt::ObjectClient> requests, retried;
  };
  const ObjectAccess& access_;
  Clock& clock_;
  const std::function<bool()> is_given_up_;
  std::map<std::string, Client> clients_;
};

}  // namespace trainctl
