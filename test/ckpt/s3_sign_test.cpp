// Goal: requests to S3 are signed as AWS signs them.
// Method: the known answers that the Amazon S3 API Reference prints for four requests ("Examples: Signature
// Calculations"), with its example credentials; each part of a request, changed, changes the signature.
#include <catch2/catch.hpp>

#include "ckpt/s3_sign.h"
#include "runtime/base/hash.h"

using namespace trainctl;

namespace {

const ckpt::S3Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
const std::string kTime = "20130524T000000Z";

std::string signature(const ckpt::S3Request& request, const ckpt::S3Credentials& credentials = kExample,
                      const std::string& region = "us-east-1", const std::string& time = kTime) {
  const std::string text = ckpt::s3_signed_headers(request, credentials, region, time).at("authorization");
  return text.substr(text.find("Signature=") + 10);
}

ckpt::S3Request get(const std::string& path) {
  return {.method = "GET",
          .path = path,
          .headers = {{"host", "examplebucket.s3.amazonaws.com"}},
          .body_sha256 = sha256_hex("")};
}

}  // namespace

TEST_CASE("the known answers of AWS for signatures of version 4") {
  ckpt::S3Request object = get("/test.txt");
  object.headers["range"] = "bytes=0-9";
  CHECK(signature(object) == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(ckpt::s3_signed_headers(object, kExample, "us-east-1", kTime).at("authorization") ==
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");

  ckpt::S3Request put = get("/test$file.text");
  put.method = "PUT";
  put.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  put.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  put.body_sha256 = sha256_hex("Welcome to Amazon S3.");
  CHECK(put.body_sha256 == "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
  CHECK(signature(put) == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");

  ckpt::S3Request lifecycle = get("/");
  lifecycle.query["lifecycle"] = "";
  CHECK(signature(lifecycle) == "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");

  ckpt::S3Request list = get("/");
  list.query = {{"max-keys", "2"}, {"prefix", "J"}};
  CHECK(signature(list) == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("every part of a request is signed") {
  const ckpt::S3Request plain = get("/a b/c+d");
  std::map<std::string, int> seen{{signature(plain), 1}};
  const auto is_new = [&](const std::string& text) { return ++seen[text] == 1; };
  ckpt::S3Request request = plain;
  request.method = "PUT";
  CHECK(is_new(signature(request)));
  request = plain, request.path = "/a%20b/c+d";
  CHECK(is_new(signature(request)));
  request = plain, request.query["x"] = "";
  CHECK(is_new(signature(request)));
  request = plain, request.headers["content-md5"] = "x";
  CHECK(is_new(signature(request)));
  request = plain, request.body_sha256 = sha256_hex("x");
  CHECK(is_new(signature(request)));
  ckpt::S3Credentials other = kExample;
  other.session_token = "token";
  CHECK(is_new(signature(plain, other)));
  CHECK(ckpt::s3_signed_headers(plain, other, "r", kTime).at("x-amz-security-token") == "token");
  other = kExample, other.secret_key += "x";
  CHECK(is_new(signature(plain, other)));
  CHECK(is_new(signature(plain, kExample, "eu-west-1")));
  CHECK(is_new(signature(plain, kExample, "us-east-1", "20130524T000001Z")));
  // The secret itself is in no header.
  for (const auto& [name, value] : ckpt::s3_signed_headers(plain, kExample, "us-east-1", kTime))
    CHECK(value.find(kExample.secret_key) == std::string::npos);
}

TEST_CASE("encodings and times of requests") {
  CHECK(ckpt::uri_encoded("a b/c~d+\xc3\xa9", true) == "a%20b/c~d%2B%C3%A9");
  CHECK(ckpt::uri_encoded("a/b", false) == "a%2Fb");
  CHECK(ckpt::query_text({{"prefix", "x/y"}, {"list-type", "2"}, {"Z", ""}}) ==
        "Z=&list-type=2&prefix=x%2Fy");
  CHECK(ckpt::s3_time(1369353600) == "20130524T000000Z");
  CHECK(ckpt::s3_time(1709210096.9) == "20240229T123456Z");
}
