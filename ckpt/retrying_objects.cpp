// Requests to an object store, repeated until they succeed, are refused, or the deadline has passed.
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "ckpt/objects.h"
#include "runtime/base/hash.h"
#include "runtime/base/units.h"

namespace trainctl::ckpt {
namespace {

std::string md5_hex(std::span<const std::byte> data) {
  std::array<unsigned char, 16> digest{};
  ENSURE(EVP_Digest(data.data(), data.size(), digest.data(), nullptr, EVP_md5(), nullptr) == 1,
         "MD5 of {} bytes", data.size());
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_md5(const std::string& text) {
  return text.size() == 32 && std::all_of(text.begin(), text.end(), [](char c) { return hex_digit(c) >= 0; });
}

class Retrying final : public ObjectClient {
 public:
  Retrying(ObjectClient& inner, Clock& clock, const RetryLimits& limits)
      : inner_(inner), clock_(clock), limits_(limits) {}

  std::optional<ObjectInfo> head(const std::string& key) override {
    return repeat("HEAD", key, [&](int) { return inner_.head(key); });
  }
  size_t get(const std::string& key, uint64_t offset, std::span<std::byte> out) override {
    complete(key, offset, out, [&](uint64_t at, std::span<std::byte> rest) {
      return std::optional(inner_.get(key, at, rest));
    });
    return out.size();
  }
  std::optional<size_t> get_if(const std::string& key, const std::string& version, uint64_t offset,
                               std::span<std::byte> out) override {
    const bool is_same = complete(key, offset, out, [&](uint64_t at, std::span<std::byte> rest) {
      return inner_.get_if(key, version, at, rest);
    });
    return is_same ? std::optional(out.size()) : std::nullopt;
  }
  std::string put(const std::string& key, std::span<const std::byte> body) override {
    const std::string expected = etag_of(body);
    return repeat("PUT", key, [&](int) { return checked(inner_.put(key, body), expected); });
  }
  std::optional<std::string> put_if(const std::string& key, const std::string& version,
                                    std::span<const std::byte> body) override {
    const std::string expected = etag_of(body);
    std::string condition = version;
    return repeat("PUT", key, [&](int tries) -> std::optional<std::string> {
      const auto etag = inner_.put_if(key, condition, body);
      if (etag && !etags_differ(*etag, expected)) return etag;
      const auto there = inner_.head(key);
      if (!etag) {
        // An earlier try may have succeeded without an answer.
        const bool is_ours = tries > 0 && there && there->etag == expected;
        return is_ours ? std::optional(there->etag) : std::nullopt;
      }
      // Other bytes than ours have arrived: these are to be replaced.
      if (there && there->etag == *etag) condition = there->version;
      return checked(*etag, expected);
    });
  }
  std::string start_upload(const std::string& key) override {
    return repeat("start of the upload", key, [&](int) { return inner_.start_upload(key); });
  }
  std::string put_part(const std::string& key, const std::string& upload, int number,
                       std::span<const std::byte> body) override {
    const std::string expected = etag_of(body);
    return repeat("PUT of a part", key,
                  [&](int) { return checked(inner_.put_part(key, upload, number, body), expected); });
  }
  std::string finish_upload(const std::string& key, const std::string& upload,
                            const std::vector<std::string>& etags) override {
    const std::string expected = etag_of_parts(etags);
    return repeat("end of the upload", key, [&](int tries) {
      try {
        return checked(inner_.finish_upload(key, upload, etags), expected);
      } catch (const ObjectError& error) {
        // An earlier try may have succeeded without an answer: then the upload is gone and the object is
        // there.
        if (error.status() != 404 || tries == 0) throw;
        const auto there = inner_.head(key);
        if (!there || etags_differ(there->etag, expected) || there->etag.empty()) throw;
        return there->etag;
      }
    });
  }
  void abort_upload(const std::string& key, const std::string& upload) override {
    repeat("abort of the upload", key, [&](int) { return inner_.abort_upload(key, upload), true; });
  }
  std::vector<UnfinishedUpload> list_uploads(const std::string& prefix) override {
    return repeat("listing of uploads", prefix, [&](int) { return inner_.list_uploads(prefix); });
  }
  std::vector<ObjectInfo> list(const std::string& prefix) override {
    return repeat("listing", prefix, [&](int) { return inner_.list(prefix); });
  }
  void remove(const std::string& key) override {
    repeat("DELETE", key, [&](int) { return inner_.remove(key), true; });
  }

 private:
  static std::string checked(const std::string& etag, const std::string& expected) {
    if (etags_differ(etag, expected))
      throw ObjectError(0, fmt::format("the answer has the ETag {} instead of {}", etag, expected));
    return etag;
  }

  /// Fills `out` by request(offset, the rest of `out`). A body that was cut short is continued; an empty one
  /// counts as a failure. False: a request gave nullopt.
  template <typename Request>
  bool complete(const std::string& key, uint64_t offset, std::span<std::byte> out, const Request& request) {
    size_t have = 0;
    return repeat("GET", key, [&](int) {
      while (have < out.size()) {
        const std::optional<size_t> more = request(offset + have, out.subspan(have));
        if (!more) return false;
        ENSURE(*more <= out.size() - have, "{}: {} bytes for {}", key, *more, out.size() - have);
        have += *more;
        if (*more == 0) throw ObjectError(0, fmt::format("the body ended {} bytes early", out.size() - have));
      }
      return true;
    });
  }

  /// request(number of tries before this one)
  template <typename Request>
  std::invoke_result_t<Request, int> repeat(const char* what, const std::string& key, const Request& request) {
    const double begin = clock_.monotonic_s();
    double wait = limits_.first_wait_s;
    for (int tries = 0;; ++tries) {
      try {
        return request(tries);
      } catch (const ObjectError& error) {
        const double waited = clock_.monotonic_s() - begin, pause = wait * (1 - random() / 2);
        if (!error.may_pass())
          throw ObjectError(error.status(), message(what, key, tries + 1, waited, error));
        if (waited + pause > limits_.deadline_s)
          throw ObjectError(error.status(), message(what, key, tries + 1, waited, error));
        clock_.sleep_s(pause);
        wait = std::min(2 * wait, limits_.longest_wait_s);
      }
    }
  }
  static std::string message(const char* what, const std::string& key, int tries, double seconds,
                             const ObjectError& error) {
    const std::string often =
        tries == 1 ? "" : fmt::format(" {} times in {}", tries, short_duration(seconds));
    return fmt::format("the {} of {} failed{}: {}", what, key, often, error.what());
  }
  /// In [0, 1): spreads the tries of many clients. Not for secrets.
  double random() { return double(xxh3(std::as_bytes(std::span(&++drawn_, 1)), seed_) >> 11) * 0x1p-53; }

  ObjectClient& inner_;
  Clock& clock_;
  const RetryLimits limits_;
  uint64_t drawn_ = 0;
  const uint64_t seed_ = uint64_t(clock_.unix_s() * 1e6) ^ reinterpret_cast<uintptr_t>(this);
};

}  // namespace

std::string etag_of(std::span<const std::byte> body) { return md5_hex(body); }

std::string etag_of_parts(const std::vector<std::string>& etags) {
  std::vector<std::byte> digests;
  for (const std::string& etag : etags) {
    if (!is_md5(etag)) return "";  // of an unknown kind
    for (size_t i = 0; i < 32; i += 2)
      digests.push_back(std::byte(hex_digit(etag[i]) << 4 | hex_digit(etag[i + 1])));
  }
  return fmt::format("{}-{}", md5_hex(digests), etags.size());
}

bool etags_differ(const std::string& etag, const std::string& expected) {
  const auto has_form = [](const std::string& text) { return is_md5(text.substr(0, text.find('-'))); };
  return has_form(etag) && has_form(expected) && etag != expected;
}

std::unique_ptr<ObjectClient> retrying(ObjectClient& inner, Clock& clock, const RetryLimits& limits) {
  return std::make_unique<Retrying>(inner, clock, limits);
}

}  // namespace trainctl::ckpt
