// Signatures of requests to an S3-compatible store: AWS Signature Version 4, header form, one chunk.
//
// Pure functions. Source: "Signature Calculations for the Authorization Header: Transferring Payload in a
// Single Chunk", Amazon S3 API Reference; held to that page's examples by test/ckpt/s3_sign_test.cpp.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace trainctl::ckpt {

/// Never printed: neither in messages nor in records.
struct S3Credentials {
  std::string access_key, secret_key, session_token;  ///< token: "" without
};

/// A request before it is signed.
struct S3Request {
  std::string method;                        ///< "GET"
  std::string path;                          ///< "/bucket/key", not encoded
  std::map<std::string, std::string> query;  ///< not encoded
  std::map<std::string, std::string>
      headers;              ///< lower-case names; all of them are signed; "host" among them
  std::string body_sha256;  ///< lower-case hex
};

/// Percent-encoding of RFC 3986 in upper-case hex; `keep_slash` for paths.
std::string uri_encoded(std::string_view text, bool keep_slash);
/// "a=1&b=", encoded and in the order of the names: as it stands in the URL and in the signature.
std::string query_text(const std::map<std::string, std::string>& query);

/// The headers to send: those of `request`, x-amz-date, x-amz-content-sha256, x-amz-security-token where
/// there is one, and authorization. `time`: "20130524T000000Z".
std::map<std::string, std::string> s3_signed_headers(const S3Request& request,
                                                     const S3Credentials& credentials,
                                                     const std::string& region, const std::string& time);

/// "20130524T000000Z" of seconds since 1970.
std::string s3_time(double unix_s);

}  // namespace trainctl::ckpt
