#include "runtime/sources/stored_objects.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace trainctl {
namespace {

constexpr const char* kScheme = "s3://";
/// A person waits for the first answer.
constexpr double kLookUpDeadlineS = 20;

ObjectAccess for_looking_up(ObjectAccess access) {
  access.retries.deadline_s = std::min(access.retries.deadline_s, kLookUpDeadlineS);
  return access;
}

struct Place {
  std::string bucket, key;
};

Place place_of(const std::string& url) {
  const std::string path = url.substr(std::string(kScheme).size());
  const size_t slash = path.find('/');
  if (slash == 0 || slash == path.npos)
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} names no object: give s3://bucket/key, or s3://bucket/prefix/ for all below it",
                    url));
  return {path.substr(0, slash), path.substr(slash + 1)};
}

/// Finds objects; a client for each bucket.
class Finder {
 public:
  Finder(const ObjectAccess& access, const std::function<bool(const std::string&)>& is_text)
      : access_(for_looking_up(access)), is_text_(is_text), clients_(access_, access.clock) {}

  void add(const std::string& input) {
    if (!is_object_url(input)) {
      found_.paths.push_back(input);
      return;
    }
    const Place place = place_of(input);
    try {
      if (place.key.empty() || place.key.ends_with("/"))
        add_below(input, place);
      else
        add_object(input, place);
    } catch (const ckpt::ObjectError& error) {
      throw object_error(access_, input, error);
    }
  }
  FoundInputs take() { return std::move(found_); }

 private:
  void keep(const std::string& bucket, const ckpt::ObjectInfo& info) {
    StoredObject object{fmt::format("{}{}/{}", kScheme, bucket, info.key), bucket, info.key, info.bytes,
                        info.version};
    found_.paths.push_back(object.url);
    if (urls_.insert(object.url).second) found_.objects.push_back(std::move(object));
  }

  void add_below(const std::string& input, const Place& place) {
    auto objects = clients_.of(place.bucket).list(place.key);
    std::sort(objects.begin(), objects.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    size_t texts = 0;
    for (ckpt::ObjectInfo& info : objects) {
      if (info.key.ends_with("/")) continue;  // stands for a folder
      if (!is_text_(info.key)) {
        found_.left_out.push_back(fmt::format("{}{}/{}", kScheme, place.bucket, info.key));
        continue;
      }
      ++texts;
      // Not every store lists versions.
      if (info.version.empty()) info = there(clients_.of(place.bucket).head(info.key), input);
      keep(place.bucket, info);
    }
    if (texts == 0)
      throw Error(
          ErrorCode::kData,
          fmt::format(
              "there is no text below {} at {} ({} other objects): names of texts end in .jsonl, .json, "
              ".ndjson, .txt (.gz or .zst may follow) or .parquet; name other objects one by one",
              input, access_.endpoint, objects.size()));
  }

  void add_object(const std::string& input, const Place& place) {
    const auto info = clients_.of(place.bucket).head(place.key);
    if (!info) {
      // The answer does not tell an absent object from an absent bucket; a listing does.
      const auto below = clients_.of(place.bucket).list(place.key + "/");
      if (!below.empty())
        throw Error(ErrorCode::kUsage,
                    fmt::format("{} is no object, but {} objects are below it; give {}/ to read them", input,
                                below.size(), input));
    }
    keep(place.bucket, there(info, input));
  }

  ckpt::ObjectInfo there(const std::optional<ckpt::ObjectInfo>& info, const std::string& url) const {
    if (info) return *info;
    throw Error(ErrorCode::kData,
                fmt::format("there is no object {} at {}; correct the name", url, access_.endpoint));
  }

  const ObjectAccess access_;
  const std::function<bool(const std::string&)>& is_text_;
  BucketClients clients_;
  std::set<std::string> urls_;
  FoundInputs found_;
};

}  // namespace

bool is_object_url(const std::string& path) { return path.starts_with(kScheme); }

FoundInputs find_inputs(const ObjectAccess& access, const std::vector<std::string>& inputs,
                        const std::function<bool(const std::string& name)>& is_text) {
  Finder finder(access, is_text);
  for (const std::string& input : inputs) finder.add(input);
  return finder.take();
}

Error object_error(const ObjectAccess& access, const std::string& url, const ckpt::ObjectError& error) {
  const std::string what = error.what(), bucket = place_of(url).bucket;
  switch (error.status()) {
    case 404:
      if (what.find("NoSuchBucket") != what.npos)
        return {ErrorCode::kData,
                fmt::format("there is no bucket {} at {}; correct {}, or set AWS_ENDPOINT_URL and AWS_REGION",
                            bucket, access.endpoint, url)};
      return {ErrorCode::kIo, fmt::format("{} is gone from {}: {}; put the same object there again", url,
                                          access.endpoint, what)};
    case 401:
    case 403:
      return {ErrorCode::kIo,
              fmt::format("{} refuses to read {}: {}; check the credentials (AWS_ACCESS_KEY_ID and "
                          "AWS_SECRET_ACCESS_KEY, "
                          "or ~/.aws/credentials) and that they may read and list the bucket {}",
                          access.endpoint, url, what, bucket)};
    case 301:
    case 307:
    case 400:
      return {ErrorCode::kIo, fmt::format("{} cannot read {}: {}; check AWS_REGION and AWS_ENDPOINT_URL",
                                          access.endpoint, url, what)};
    default:
      return {ErrorCode::kIo,
              fmt::format("{} cannot be read: {}; check AWS_ENDPOINT_URL and the network", url, what)};
  }
}

}  // namespace trainctl
