// Built instead of s3_client.cpp if curl's header was not found.
#include "ckpt/s3_client.h"

namespace trainctl::ckpt {

std::unique_ptr<ObjectClient> s3_client(const S3Options&, Clock&) {
  throw Error(
      ErrorCode::kUsage,
      "this program was built without object stores: install libcurl4-openssl-dev and build it again");
}

}  // namespace trainctl::ckpt
