#include "ckpt/places.h"

#include <fmt/format.h>

#include "ckpt/folders.h"
#include "ckpt/object_store.h"

namespace trainctl::ckpt {
namespace {

constexpr const char* kScheme = "s3://";

/// One for all copies of this process: a copy that is tried again finds what the try before has left.
const std::string& word_of_process() {
  static const std::string word = new_word().substr(0, 8);
  return word;
}

std::string without_slash(std::string text) {
  while (text.size() > 1 && text.ends_with("/")) text.pop_back();
  return text;
}

}  // namespace

bool is_object_place(const std::string& place) { return place.starts_with(kScheme); }

OpenPlace open_place(FileSystem& fs, Clock& clock, const Environment& environment, const std::string& given,
                     const PlaceOptions& options) {
  const std::string place = without_slash(given);
  if (!is_object_place(place)) return {.store = directory_store(fs, place)};
  const std::string path = place.substr(std::string(kScheme).size());
  const size_t slash = path.find('/');
  const std::string bucket = path.substr(0, slash),
                    prefix = slash == std::string::npos ? "" : path.substr(slash + 1);
  if (bucket.empty() || prefix.empty() || prefix.front() == '/')
    throw Error(ErrorCode::kUsage,
                fmt::format("{} names no place for checkpoints: give s3://bucket/prefix", given));
  OpenPlace result;
  S3Options s3 = s3_options(fs, environment, bucket);
  s3.is_given_up = options.is_given_up;
  result.requests = s3_client(s3, clock);
  result.retried = retrying(*result.requests, clock, options.retries);
  result.store = object_store(
      *result.retried, {.prefix = prefix, .where = place, .epoch = options.epoch, .word = word_of_process()});
  return result;
}

OpenPlace open_reached_place(FileSystem& fs, Clock& clock, const Environment& environment,
                             const std::string& place) {
  OpenPlace open = open_place(fs, clock, environment, place);
  if (!open.requests) return open;
  constexpr RetryLimits kPatience{.deadline_s = 5};
  const std::string name = without_slash(place);
  const std::string prefix = name.substr(name.find('/', std::string(kScheme).size()) + 1);
  try {
    retrying(*open.requests, clock, kPatience)->head(prefix + "/INDEX");
  } catch (const ObjectError& error) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}; check AWS_ENDPOINT_URL, the credentials and the network",
                                            place, error.what()));
  }
  return open;
}

}  // namespace trainctl::ckpt
