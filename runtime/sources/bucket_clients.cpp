#include "runtime/sources/bucket_clients.h"

namespace trainctl {

ObjectAccess s3_access(FileSystem& fs, Clock& clock, const ckpt::Environment& environment) {
  return {.clock = clock,
          .endpoint = ckpt::s3_options(fs, environment, "").endpoint,
          .client = [&fs, &clock, environment](const std::string& bucket, std::function<bool()> is_given_up) {
            ckpt::S3Options options = ckpt::s3_options(fs, environment, bucket);
            options.is_given_up = std::move(is_given_up);
            return ckpt::s3_client(options, clock);
          }};
}

ckpt::ObjectClient& BucketClients::of(const std::string& bucket) {
  Client& client = clients_[bucket];
  if (!client.retried) {
    client.requests = access_.client(bucket, is_given_up_);
    client.retried = ckpt::retrying(*client.requests, clock_, access_.retries);
  }
  return *client.retried;
}

}  // namespace trainctl
