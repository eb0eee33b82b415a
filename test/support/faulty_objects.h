// An object store in memory that fails, lags and stops on request.
//
// Puts, gets and heads are strongly consistent, as S3's are. A listing shows the keys as they were `lag`
// changes ago: objects put since are missing, removed ones are still named. Every request that changes
// something (put, start, part, finish, abort, remove) is one effect, numbered from 0; every request at all
// has a number too.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ckpt/objects.h"

namespace trainctl::test {

/// What goes wrong with a request.
enum class ObjectFault {
  refused,       ///< 403, and it stays so
  server_error,  ///< 500, nothing was done
  slow_down,     ///< 503, nothing was done
  lost_request,  ///< no answer, nothing was done
  lost_answer,   ///< no answer, it was done
  cut_body,      ///< a get brings half of its bytes, at least one; other requests: no answer
  wrong_body,    ///< a put or a part stores other bytes and answers with their ETag; other requests: 500
};
inline constexpr ObjectFault kPassingFaults[] = {ObjectFault::server_error, ObjectFault::slow_down,
                                                 ObjectFault::lost_request, ObjectFault::lost_answer,
                                                 ObjectFault::cut_body,     ObjectFault::wrong_body};

class FaultyObjects final : public ckpt::ObjectClient {
 public:
  explicit FaultyObjects(int lag = 0) : lag_(lag) {}

  /// The writer dies when `effects` more effects have happened: every later call throws PowerLost.
  void stop_after(uint64_t effects) { stop_at_ = effects_.size() + effects; }
  /// Request number `request` from now on fails, and `count - 1` after it.
  void fail_at(uint64_t request, ObjectFault fault, uint64_t count = 1);
  /// Effect number `effect` from now on fails, and `count - 1` after it.
  void fail_at_effect(uint64_t effect, ObjectFault fault, uint64_t count = 1);
  void repair();
  /// Puts of keys that end like this are answered and forgotten; for tests of tests.
  void forget_puts_of(const std::string& key_end) { forgotten_.insert(key_end); }
  /// The objects as they are, for a writer that comes later: no faults, uploads under way are gone.
  std::unique_ptr<FaultyObjects> copy() const;
  /// Listings show what is there.
  void settle() { past_.clear(); }

  uint64_t requests() const { return requests_; }
  const std::vector<std::string>& effects() const { return effects_; }
  const std::map<std::string, std::string>& objects() const { return objects_; }
  size_t uploads() const { return uploads_.size(); }
  void poke(const std::string& key, const std::string& content);
  /// How puts with a condition are answered; most stores know them.
  enum class Conditions { known, refused, ignored } conditions = Conditions::known;

  std::optional<ckpt::ObjectInfo> head(const std::string& key) override;
  size_t get(const std::string& key, uint64_t offset, std::span<std::byte> out) override;
  std::optional<size_t> get_if(const std::string& key, const std::string& version, uint64_t offset,
                               std::span<std::byte> out) override;
  std::string put(const std::string& key, std::span<const std::byte> body) override;
  std::optional<std::string> put_if(const std::string& key, const std::string& version,
                                    std::span<const std::byte> body) override;
  std::string start_upload(const std::string& key) override;
  std::string put_part(const std::string& key, const std::string& upload, int number,
                       std::span<const std::byte> body) override;
  std::string finish_upload(const std::string& key, const std::string& upload,
                            const std::vector<std::string>& etags) override;
  void abort_upload(const std::string& key, const std::string& upload) override;
  std::vector<ckpt::UnfinishedUpload> list_uploads(const std::string& prefix) override;
  std::vector<ckpt::ObjectInfo> list(const std::string& prefix) override;
  void remove(const std::string& key) override;

 private:
  struct Upload {
    std::string key;
    std::map<int, std::string> parts;
  };
  struct Window {
    uint64_t first = ~uint64_t(0), count = 0;
    ObjectFault fault = ObjectFault::server_error;
    bool holds(uint64_t number) const { return number >= first && number - first < count; }
  };

  /// Counts the request; throws what comes before it is done. The fault that is to follow, if any.
  std::optional<ObjectFault> begin(const std::string& text, bool is_effect);
  /// Throws what comes after it is done.
  static void end(const std::optional<ObjectFault>& fault);
  void store(const std::string& key, std::string content);
  /// The listing of before a change is remembered.
  void remember();
  Upload& upload(const std::string& id, const std::string& key);

  const int lag_;
  std::map<std::string, std::string> objects_, etags_;
  std::map<std::string, Upload> uploads_;
  std::deque<std::vector<ckpt::ObjectInfo>> past_;  ///< listings, oldest first
  std::vector<std::string> effects_;
  std::set<std::string> forgotten_;
  uint64_t requests_ = 0, stop_at_ = ~uint64_t(0), next_upload_ = 1;
  Window at_request_, at_effect_;
};

}  // namespace trainctl::test
