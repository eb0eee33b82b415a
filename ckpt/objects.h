// ObjectClient: the requests of an object store. It has whole objects under keys, no rename, and listings
// that may lag.
//
// Each call is one request. retrying() repeats requests that may succeed later and checks the results.
// ckpt/object_store.h keeps checkpoints with it. test/support/faulty_objects.h is a twin in memory.
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
  std::string etag;     ///< without quotes
  std::string version;  ///< of the content, for get_if and put_if; never "" where head() gives it
};

/// An upload in parts that was started and neither finished nor aborted: its parts cost money and are in no
/// listing of objects.
struct UnfinishedUpload {
  std::string key, upload;
};

/// A request failed. The server may or may not have carried it out.
class ObjectError : public Error {
 public:
  /// `status`: the HTTP status; 0: no answer or an invalid one.
  ObjectError(int status, const std::string& message) : Error(ErrorCode::kIo, message), status_(status) {}
  int status() const { return status_; }
  /// Whether a repetition may succeed: no answer, too many requests, errors of the server.
  bool may_pass() const {
    return status_ == 0 || status_ == 408 || status_ == 429 || (status_ >= 500 && status_ != kNotImplemented);
  }
  /// Whether the store may not know what was asked, as a PUT with a condition: 400 or 501.
  bool may_be_unknown() const { return status_ == 400 || status_ == kNotImplemented; }

 private:
  static constexpr int kNotImplemented = 501;
  int status_;
};

/// The objects of one bucket. get, head and put see every put that was answered; list may return an older
/// state. Every call throws ObjectError. Not thread-safe.
class ObjectClient {
 public:
  virtual ~ObjectClient() = default;
  virtual std::optional<ObjectInfo> head(const std::string& key) = 0;  ///< nullopt: absent
  /// Reads up to out.size() bytes from `offset` and returns their number. It is smaller if the connection
  /// ended early or the object ends.
  virtual size_t get(const std::string& key, uint64_t offset, std::span<std::byte> out) = 0;
  /// get() if the object still has this version, which is not "". nullopt: it has another one.
  virtual std::optional<size_t> get_if(const std::string& key, const std::string& version, uint64_t offset,
                                       std::span<std::byte> out) = 0;
  /// Makes or replaces the object atomically. Returns its ETag, as do put_part and finish_upload: "" where it
  /// is no MD5; of a part always what finish_upload is to be given.
  virtual std::string put(const std::string& key, std::span<const std::byte> body) = 0;
  /// put() if the object still has this version, which head() gave; `version` "": if there is no such object.
  /// nullopt: that is not so, and nothing was changed; look again. ObjectError with may_be_unknown() where
  /// the store refuses conditions.
  virtual std::optional<std::string> put_if(const std::string& key, const std::string& version,
                                            std::span<const std::byte> body) = 0;
  /// Starts an upload in parts, numbered from 1, and returns its id. The object exists when the upload is
  /// finished.
  virtual std::string start_upload(const std::string& key) = 0;
  virtual std::string put_part(const std::string& key, const std::string& upload, int number,
                               std::span<const std::byte> body) = 0;
  virtual std::string finish_upload(const std::string& key, const std::string& upload,
                                    const std::vector<std::string>& etags) = 0;
  virtual void abort_upload(const std::string& key, const std::string& upload) = 0;
  virtual std::vector<UnfinishedUpload> list_uploads(const std::string& prefix) = 0;
  virtual std::vector<ObjectInfo> list(const std::string& prefix) = 0;
  virtual void remove(const std::string& key) = 0;  ///< no error if the object is missing
};

/// The ETag that S3 gives to an object from one put: its MD5 in hex. With customer keys for encryption it
/// differs.
std::string etag_of(std::span<const std::byte> body);
/// The ETag of an object from parts with these ETags: the MD5 of their MD5s, "-", their number.
std::string etag_of_parts(const std::vector<std::string>& etags);
/// True if both texts have the form of such ETags and they differ.
bool etags_differ(const std::string& etag, const std::string& expected);

/// The limits of repetitions of a request.
struct RetryLimits {
  double first_wait_s = 0.2;  ///< doubles after each try; up to half of each wait is removed at random
  double longest_wait_s = 10;
  double deadline_s = 120;  ///< from the first try; then throws the last error with the number of tries
};

/// A client that repeats failed requests (ObjectError::may_pass), continues get() after a connection that
/// ended early, and compares ETags with the sent bytes; a wrong ETag is a failed request. `inner` and `clock`
/// must outlive it.
std::unique_ptr<ObjectClient> retrying(ObjectClient& inner, Clock& clock, const RetryLimits& limits = {});

}  // namespace trainctl::ckpt
