// An object store as its API has it: whole objects under keys, no rename, listings that may lag.
//
// ObjectClient is one request each; retrying() repeats what may pass and checks what came back.
// ckpt/object_store.h keeps checkpoints on top of it. test/support/faulty_objects.h is the twin in memory.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace trainctl::ckpt {

struct ObjectInfo {
  std::string key;
  uint64_t bytes = 0;
  std::string etag;  ///< without quotes
};

/// A request that did not succeed. Like every Error it may leave the request done or not done.
class ObjectError : public Error {
 public:
  /// `status`: of HTTP; 0: no answer, or a wrong one.
  ObjectError(int status, const std::string& message) : Error(ErrorCode::kIo, message), status_(status) {}
  int status() const { return status_; }
  /// Worth another try: no answer, too many requests, the server's own errors.
  bool may_pass() const { return status_ == 0 || status_ == 408 || status_ == 429 || status_ >= 500; }

 private:
  int status_;
};

/// Objects of one bucket. Gets, heads and puts see every put that was answered; a listing may be older.
/// Throws ObjectError. Not thread-safe.
class ObjectClient {
 public:
  virtual ~ObjectClient() = default;
  virtual std::optional<ObjectInfo> head(const std::string& key) = 0;  ///< nullopt: absent
  /// Reads from `offset`, up to out.size() bytes: fewer where the body was cut short. Returns how many.
  virtual size_t get(const std::string& key, uint64_t offset, std::span<std::byte> out) = 0;
  /// Makes or replaces the object in one step. Returns its ETag, as do put_part and finish_upload.
  virtual std::string put(const std::string& key, std::span<const std::byte> body) = 0;
  /// An object in parts, numbered from 1; it is there when the upload is finished. Returns the id of the
  /// upload.
  virtual std::string start_upload(const std::string& key) = 0;
  virtual std::string put_part(const std::string& key, const std::string& upload, int number,
                               std::span<const std::byte> body) = 0;
  virtual std::string finish_upload(const std::string& key, const std::string& upload,
                                    const std::vector<std::string>& etags) = 0;
  virtual void abort_upload(const std::string& key, const std::string& upload) = 0;
  virtual std::vector<ObjectInfo> list(const std::string& prefix) = 0;
  virtual void remove(const std::string& key) = 0;  ///< an absent object is no error
};

/// The ETag that S3 gives an object put at once: its MD5 in hex. Encryption with customer keys gives others.
std::string etag_of(std::span<const std::byte> body);
/// Of an object put in parts with these ETags: the MD5 of their MD5s, "-", their number.
std::string etag_of_parts(const std::vector<std::string>& etags);
/// True if `etag` contradicts `expected`: both look like MD5s of this kind, and they differ.
bool etags_differ(const std::string& etag, const std::string& expected);

/// How often and how long a request is repeated.
struct RetryLimits {
  double first_wait_s = 0.2;  ///< doubles after each try, with up to half of it taken away at random
  double longest_wait_s = 10;
  double deadline_s = 120;  ///< from the first try; then the last error is thrown, with the number of tries
};

/// Repeats requests that may pass, continues bodies that were cut short, and compares ETags with what was
/// sent: a wrong one counts as a failed request. `inner` and `clock` outlive it.
std::unique_ptr<ObjectClient> retrying(ObjectClient& inner, Clock& clock, const RetryLimits& limits = {});

}  // namespace trainctl::ckpt
