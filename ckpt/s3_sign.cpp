#include "ckpt/s3_sign.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <ctime>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

std::string hmac_sha256(const std::string& key, const std::string& text) {
  std::array<unsigned char, 32> digest{};
  unsigned int bytes = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(text.data());
  ENSURE(HMAC(EVP_sha256(), key.data(), int(key.size()), data, text.size(), digest.data(), &bytes) &&
             bytes == 32,
         "HMAC of {} bytes", text.size());
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// Without blanks at both ends, each run of blanks as one.
std::string trimmed_header(const std::string& value) {
  std::string result;
  for (const char c : value)
    if (c != ' ' || (!result.empty() && result.back() != ' ')) result += c;
  if (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

}  // namespace

std::string uri_encoded(std::string_view text, bool keep_slash) {
  std::string result;
  for (const unsigned char c : text) {
    const bool is_plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                          c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slash);
    result += is_plain ? std::string(1, char(c)) : fmt::format("%{:02X}", c);
  }
  return result;
}

std::string query_text(const std::map<std::string, std::string>& query) {
  std::map<std::string, std::string> encoded;  // the order is that of the encoded names
  for (const auto& [name, value] : query) encoded[uri_encoded(name, false)] = uri_encoded(value, false);
  std::string text;
  for (const auto& [name, value] : encoded)
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  return text;
}

std::map<std::string, std::string> s3_signed_headers(const S3Request& request,
                                                     const S3Credentials& credentials,
                                                     const std::string& region, const std::string& time) {
  std::map<std::string, std::string> headers = request.headers;
  headers["x-amz-date"] = time;
  headers["x-amz-content-sha256"] = request.body_sha256;
  if (!credentials.session_token.empty()) headers["x-amz-security-token"] = credentials.session_token;
  std::string lines, names;
  for (const auto& [name, value] : headers) {
    lines += fmt::format("{}:{}\n", name, trimmed_header(value));
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, uri_encoded(request.path, true),
                  query_text(request.query), lines, names, request.body_sha256);
  const std::string date = time.substr(0, 8), scope = fmt::format("{}/{}/s3/aws4_request", date, region);
  const std::string to_sign = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, sha256_hex(canonical));
  std::string key = "AWS4" + credentials.secret_key;
  for (const std::string& part : {date, region, std::string("s3"), std::string("aws4_request")})
    key = hmac_sha256(key, part);
  headers["authorization"] =
      fmt::format("AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}", credentials.access_key,
                  scope, names, hex(hmac_sha256(key, to_sign)));
  return headers;
}

std::string s3_time(double unix_s) {
  const time_t seconds = time_t(unix_s);
  tm parts{};
  ENSURE(::gmtime_r(&seconds, &parts), "time {}", unix_s);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace trainctl::ckpt
