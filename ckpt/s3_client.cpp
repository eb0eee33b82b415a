#include "ckpt/s3_client.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "ckpt/curl_library.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {
namespace {

std::string base64_md5(std::span<const std::byte> data) {
  unsigned char digest[16], text[25];
  ENSURE(EVP_Digest(data.data(), data.size(), digest, nullptr, EVP_md5(), nullptr) == 1, "MD5 of {} bytes",
         data.size());
  const int bytes = EVP_EncodeBlock(text, digest, 16);
  return {reinterpret_cast<const char*>(text), size_t(bytes)};
}

std::string sha256_of(std::span<const std::byte> data) {
  return sha256_hex(std::string_view(reinterpret_cast<const char*>(data.data()), data.size()));
}

/// The text of the first <name> after `from`, which is moved behind it. "": there is none.
std::string element(const std::string& xml, const std::string& name, size_t& from) {
  const std::string open = "<" + name + ">", close = "</" + name + ">";
  const size_t begin = xml.find(open, from),
               end = begin == std::string::npos ? begin : xml.find(close, begin);
  if (end == std::string::npos) return "";
  from = end + close.size();
  return xml.substr(begin + open.size(), end - begin - open.size());
}
std::string element(const std::string& xml, const std::string& name) {
  size_t from = 0;
  return element(xml, name, from);
}

/// ETags come in quotes, in XML as entities.
std::string unquoted(std::string text) {
  for (size_t at; (at = text.find("&quot;")) != std::string::npos;) text.replace(at, 6, "\"");
  std::erase(text, '"');
  return text;
}

/// A number of the store's answer. ObjectError if it is none: as a failed request it is tried again.
uint64_t number_in(const std::string& text, const char* what, int base = 10) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value, base);
  if (parsed.ec == std::errc() && parsed.ptr == end) return value;
  throw ObjectError(0, fmt::format("the answer has a {} that is no number: {:.80}", what, text));
}

std::string uri_decoded(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size()) throw ObjectError(0, "the answer has a key that ends within a %: " + text);
      result += char(number_in(text.substr(i + 1, 2), "key with a %", 16));
      i += 2;
    } else {
      result += text[i] == '+' ? ' ' : text[i];
    }
  }
  return result;
}

constexpr long kCleanUpLimitMs = 2000;
// What S3 answers where the condition of a PUT does not hold. Conflict: another PUT with one is under way.
constexpr long kNotFound = 404, kConflict = 409, kPreconditionFailed = 412;
constexpr long kNoSuchRange = 416;

enum class Method { get, head, put, post, remove };
const char* method_name(Method method) {
  switch (method) {
    case Method::get: return "GET";
    case Method::head: return "HEAD";
    case Method::put: return "PUT";
    case Method::post: return "POST";
    case Method::remove: break;
  }
  return "DELETE";
}

struct Call {
  Method method = Method::get;
  std::string key;
  std::map<std::string, std::string> query = {}, headers = {};
  std::span<const std::byte> body = {};
  std::span<std::byte> out =
      {};                  ///< of a body that succeeds; not empty: it goes here instead of to Answer::text
  bool cleans_up = false;  ///< sent also when everything is given up, with a short limit of its own
};

struct Answer {
  long status = 0;
  std::map<std::string, std::string> headers;  ///< lower-case names
  std::string text;                            ///< of the body
  size_t out_bytes = 0;
};

class S3Client final : public ObjectClient {
 public:
  S3Client(S3Options options, Clock& clock)
      : options_(std::move(options)), clock_(clock), handle_(curl().easy_init()) {
    ENSURE(handle_, "curl_easy_init");
    const size_t scheme = options_.endpoint.find("://");
    if (scheme == std::string::npos || options_.endpoint.find('/', scheme + 3) != std::string::npos)
      throw Error(ErrorCode::kUsage,
                  fmt::format("the endpoint {} is not of the form https://host[:port]", options_.endpoint));
    host_ = options_.endpoint.substr(scheme + 3);
  }
  ~S3Client() override { curl().easy_cleanup(handle_); }
  S3Client(const S3Client&) = delete;
  S3Client& operator=(const S3Client&) = delete;

  std::optional<ObjectInfo> head(const std::string& key) override {
    const Answer answer = send({.method = Method::head, .key = key});
    if (answer.status == 404) return std::nullopt;
    check(answer, 200);
    const auto length = answer.headers.find("content-length");
    if (length == answer.headers.end()) throw ObjectError(0, "the answer has no Content-Length");
    const auto etag = answer.headers.find("etag");
    if (etag == answer.headers.end()) throw ObjectError(0, "the answer has no ETag");
    return ObjectInfo{key, number_in(length->second, "Content-Length"), etag_in(answer), etag->second};
  }
  size_t get(const std::string& key, uint64_t offset, std::span<std::byte> out) override {
    const Answer answer = send(ranged(key, offset, out));
    return bytes_in(answer, offset);
  }
  std::optional<size_t> get_if(const std::string& key, const std::string& version, uint64_t offset,
                               std::span<std::byte> out) override {
    Call call = ranged(key, offset, out);
    call.headers["if-match"] = version;
    const Answer answer = send(call);
    // A store that does not know the condition answers with what it has, or that the object ends before.
    const auto etag = answer.headers.find("etag");
    const bool is_other = etag != answer.headers.end() && unquoted(etag->second) != unquoted(version);
    if (answer.status == kPreconditionFailed || answer.status == kNoSuchRange) return std::nullopt;
    if (answer.status < 300 && is_other) return std::nullopt;
    return bytes_in(answer, offset);
  }
  std::string put(const std::string& key, std::span<const std::byte> body) override {
    return etag_in(check(send(with_md5({.method = Method::put, .key = key, .body = body})), 200));
  }
  std::optional<std::string> put_if(const std::string& key, const std::string& version,
                                    std::span<const std::byte> body) override {
    Call call = with_md5({.method = Method::put, .key = key, .body = body});
    call.headers[version.empty() ? "if-none-match" : "if-match"] = version.empty() ? "*" : version;
    const Answer answer = send(call);
    const bool is_gone = answer.status == kNotFound && !version.empty();
    if (answer.status == kPreconditionFailed || answer.status == kConflict || is_gone) return std::nullopt;
    return etag_in(check(answer, 200));
  }
  std::string start_upload(const std::string& key) override {
    const Answer answer = check(send({.method = Method::post, .key = key, .query = {{"uploads", ""}}}), 200);
    const std::string id = element(answer.text, "UploadId");
    if (id.empty()) throw ObjectError(0, "the answer has no UploadId");
    return id;
  }
  std::string put_part(const std::string& key, const std::string& upload, int number,
                       std::span<const std::byte> body) override {
    Call call{.method = Method::put,
              .key = key,
              .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}},
              .body = body};
    const Answer answer = check(send(with_md5(call)), 200);
    // The end of the upload names it, also where it proves nothing; with its quotes it is compared with no MD5.
    const std::string etag = etag_in(answer);
    const auto as_it_came = answer.headers.find("etag");
    return !etag.empty() || as_it_came == answer.headers.end() ? etag : as_it_came->second;
  }
  std::string finish_upload(const std::string& key, const std::string& upload,
                            const std::vector<std::string>& etags) override {
    std::string body = "<CompleteMultipartUpload>";
    for (size_t i = 0; i < etags.size(); ++i)
      body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>&quot;{}&quot;</ETag></Part>", i + 1,
                          unquoted(etags[i]));
    body += "</CompleteMultipartUpload>";
    const Answer answer = check(send({.method = Method::post,
                                      .key = key,
                                      .query = {{"uploadId", upload}},
                                      .body = std::as_bytes(std::span(body))}),
                                200);
    // An error may follow the first byte of an answer with status 200.
    if (answer.text.find("<Error>") != std::string::npos) throw ObjectError(500, reason_of(answer));
    return unquoted(element(answer.text, "ETag"));
  }
  void abort_upload(const std::string& key, const std::string& upload) override {
    const Answer answer =
        send({.method = Method::remove, .key = key, .query = {{"uploadId", upload}}, .cleans_up = true});
    if (answer.status != 404) check(answer, 204);
  }
  std::vector<UnfinishedUpload> list_uploads(const std::string& prefix) override {
    std::vector<UnfinishedUpload> result;
    std::map<std::string, std::string> query{{"uploads", ""}, {"prefix", prefix}, {"encoding-type", "url"}};
    for (;;) {
      const Answer answer = check(send({.method = Method::get, .key = "", .query = query}), 200);
      size_t at = 0;
      for (std::string row; !(row = element(answer.text, "Upload", at)).empty();)
        result.push_back({uri_decoded(element(row, "Key")), element(row, "UploadId")});
      // Not every server looks at the prefix.
      std::erase_if(result, [&](const UnfinishedUpload& u) { return !u.key.starts_with(prefix); });
      if (element(answer.text, "IsTruncated") != "true") return result;
      const std::string key = uri_decoded(element(answer.text, "NextKeyMarker")),
                        upload = element(answer.text, "NextUploadIdMarker");
      if (key.empty() || (key == query["key-marker"] && upload == query["upload-id-marker"]))
        throw ObjectError(0, "the listing of uploads does not go on");
      query["key-marker"] = key;
      query["upload-id-marker"] = upload;
    }
  }
  std::vector<ObjectInfo> list(const std::string& prefix) override {
    std::vector<ObjectInfo> result;
    std::map<std::string, std::string> query{
        {"list-type", "2"}, {"prefix", prefix}, {"encoding-type", "url"}};
    for (;;) {
      const Answer answer = check(send({.method = Method::get, .key = "", .query = query}), 200);
      size_t at = 0;
      for (std::string row; !(row = element(answer.text, "Contents", at)).empty();)
        result.push_back(listed(row));
      if (element(answer.text, "IsTruncated") != "true") return result;
      const std::string next = element(answer.text, "NextContinuationToken");
      if (next.empty() || next == query["continuation-token"])
        throw ObjectError(0, "the listing does not go on");
      query["continuation-token"] = next;
    }
  }
  void remove(const std::string& key) override {
    const Answer answer = send({.method = Method::remove, .key = key});
    if (answer.status != 404) check(answer, 204);
  }

 private:
  static Call ranged(const std::string& key, uint64_t offset, std::span<std::byte> out) {
    ENSURE(!out.empty(), "{}: no bytes", key);
    Call call{.method = Method::get, .key = key, .out = out};
    call.headers["range"] = fmt::format("bytes={}-{}", offset, offset + out.size() - 1);
    return call;
  }
  static size_t bytes_in(const Answer& answer, uint64_t offset) {
    if (answer.status == 200 && offset > 0) throw ObjectError(0, "the store does not understand ranges");
    return check(answer, answer.status == 200 ? 200 : 206).out_bytes;
  }
  /// The object of a row of a listing.
  static ObjectInfo listed(const std::string& row) {
    const std::string etag = unquoted(element(row, "ETag"));
    return {uri_decoded(element(row, "Key")), number_in("0" + element(row, "Size"), "Size"), etag,
            etag.empty() ? "" : '"' + etag + '"'};
  }
  static Call with_md5(Call call) {
    call.headers["content-md5"] = base64_md5(call.body);  // the store refuses a body that arrives otherwise
    return call;
  }
  /// "" if the object is encrypted with customer keys: then the ETag is not an MD5.
  static std::string etag_in(const Answer& answer) {
    const auto etag = answer.headers.find("etag");
    const auto encryption = answer.headers.find("x-amz-server-side-encryption");
    const bool proves_nothing = encryption != answer.headers.end() && encryption->second != "AES256";
    return etag == answer.headers.end() || proves_nothing ? "" : unquoted(etag->second);
  }
  static std::string reason_of(const Answer& answer) {
    const std::string code = element(answer.text, "Code"), message = element(answer.text, "Message");
    std::string text = fmt::format("{} {} {}", answer.status, code, message);
    std::replace(text.begin(), text.end(), '\n', ' ');
    while (text.ends_with(" ")) text.pop_back();
    return text;
  }
  static const Answer& check(const Answer& answer, long wanted) {
    if (answer.status != wanted) throw ObjectError(int(answer.status), reason_of(answer));
    return answer;
  }

  Answer send(const Call& call) {
    const std::string path = fmt::format("/{}{}{}", options_.bucket, call.key.empty() ? "" : "/", call.key);
    S3Request request{.method = method_name(call.method),
                      .path = path,
                      .query = call.query,
                      .headers = call.headers,
                      .body_sha256 = sha256_of(call.body)};
    request.headers["host"] = host_;
    const std::string query = query_text(call.query);
    const std::string url = options_.endpoint + uri_encoded(path, true) + (query.empty() ? "" : "?" + query);
    curl_slist* headers = nullptr;
    for (const auto& [name, value] :
         s3_signed_headers(request, options_.credentials, options_.region, s3_time(clock_.unix_s())))
      headers = curl().slist_append(headers, fmt::format("{}: {}", name, value).c_str());
    for (const char* none : {"Expect:", "Content-Type:"}) headers = curl().slist_append(headers, none);
    const std::unique_ptr<curl_slist, void (*)(curl_slist*)> owner(headers, curl().slist_free_all);
    return perform(call, url, headers);
  }

  template <typename Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = curl().easy_setopt(handle_, option, value);
    ENSURE(code == CURLE_OK, "option {} of libcurl: {}", int(option), curl().easy_strerror(code));
  }

  Answer perform(const Call& call, const std::string& url, curl_slist* headers) {
    curl().easy_reset(handle_);  // keeps connections
    Reply reply{call.out, {}, handle_};
    Upload upload{call.body};
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_CONNECTTIMEOUT_MS, long(options_.connect_timeout_s * 1000));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, long(std::max(options_.idle_timeout_s, 1.0)));
    if (call.cleans_up) {
      set(CURLOPT_TIMEOUT_MS, kCleanUpLimitMs);
    } else if (options_.is_given_up) {
      set(CURLOPT_NOPROGRESS, 0L);
      set(CURLOPT_XFERINFOFUNCTION, &ask_to_go_on);
      set(CURLOPT_XFERINFODATA, this);
    }
    set(CURLOPT_HEADERFUNCTION, &take_header);
    set(CURLOPT_HEADERDATA, &reply);
    set(CURLOPT_WRITEFUNCTION, &take_body);
    set(CURLOPT_WRITEDATA, &reply);
    if (call.method == Method::head) {
      set(CURLOPT_NOBODY, 1L);
    } else if (call.method == Method::put || call.method == Method::post) {
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_INFILESIZE_LARGE, curl_off_t(call.body.size()));
      set(CURLOPT_READFUNCTION, &give_body);
      set(CURLOPT_READDATA, &upload);
    }
    if (call.method != Method::head) set(CURLOPT_CUSTOMREQUEST, method_name(call.method));
    const CURLcode code = curl().easy_perform(handle_);
    curl().easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &reply.answer.status);
    if (code == CURLE_PARTIAL_FILE && !call.out.empty())
      return std::move(reply.answer);  // cut short: the caller continues it
    if (code != CURLE_OK)
      throw ObjectError(0,
                        fmt::format("no answer from {}: {}", options_.endpoint, curl().easy_strerror(code)));
    return std::move(reply.answer);
  }

  struct Reply {
    std::span<std::byte> out;
    Answer answer;
    CURL* handle;
  };
  struct Upload {
    std::span<const std::byte> rest;
  };
  /// Not 0: curl ends the request.
  static int ask_to_go_on(void* client, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<S3Client*>(client)->options_.is_given_up();
  }
  static size_t take_header(char* data, size_t size, size_t count, void* to) {
    const std::string line(data, size * count);
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return size * count;
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    const size_t begin = line.find_first_not_of(" \t", colon + 1), end = line.find_last_not_of(" \t\r\n");
    static_cast<Reply*>(to)->answer.headers[name] =
        begin == std::string::npos || end < begin ? "" : line.substr(begin, end - begin + 1);
    return size * count;
  }
  static size_t take_body(char* data, size_t size, size_t count, void* to) {
    Reply& reply = *static_cast<Reply*>(to);
    const size_t bytes = size * count;
    long status = 0;
    curl().easy_getinfo(reply.handle, CURLINFO_RESPONSE_CODE, &status);
    if (reply.out.empty() || status >= 300) {
      constexpr size_t kMostText = size_t(64) << 20;
      if (reply.answer.text.size() + bytes > kMostText) return 0;
      reply.answer.text.append(data, bytes);
    } else {
      // The answer is longer than requested: the store ignores the range.
      const size_t taken = std::min(bytes, reply.out.size() - reply.answer.out_bytes);
      std::memcpy(reply.out.data() + reply.answer.out_bytes, data, taken);
      reply.answer.out_bytes += taken;
    }
    return bytes;
  }
  static size_t give_body(char* data, size_t size, size_t count, void* from) {
    Upload& upload = *static_cast<Upload*>(from);
    const size_t bytes = std::min(size * count, upload.rest.size());
    if (bytes > 0) std::memcpy(data, upload.rest.data(), bytes);
    upload.rest = upload.rest.subspan(bytes);
    return bytes;
  }

  const S3Options options_;
  Clock& clock_;
  CURL* const handle_;
  std::string host_;
};

}  // namespace

std::unique_ptr<ObjectClient> s3_client(const S3Options& options, Clock& clock) {
  return std::make_unique<S3Client>(options, clock);
}

}  // namespace trainctl::ckpt
