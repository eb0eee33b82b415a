#include "ckpt/http_post.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "ckpt/curl_library.h"
#include "runtime/base/error.h"

namespace trainctl::ckpt {
namespace {

/// What it answers does not matter, only its status.
size_t forget_body(char*, size_t size, size_t count, void*) { return size * count; }

}  // namespace

Problem http_post(const HttpPost& post) try {
  const std::unique_ptr<CURL, void (*)(CURL*)> handle(curl().easy_init(), curl().easy_cleanup);
  ENSURE(handle, "curl_easy_init");
  const auto set = [&](CURLoption option, auto value) {
    const CURLcode code = curl().easy_setopt(handle.get(), option, value);
    ENSURE(code == CURLE_OK, "option {} of libcurl: {}", int(option), curl().easy_strerror(code));
  };
  curl_slist* headers = nullptr;
  for (const char* line : {"Content-Type: application/json", "Expect:"})
    headers = curl().slist_append(headers, line);
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> owner(headers, curl().slist_free_all);
  set(CURLOPT_URL, post.url.c_str());
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TIMEOUT_MS, std::max(1L, long(post.timeout_s * 1000)));
  set(CURLOPT_POSTFIELDS, post.json.c_str());
  set(CURLOPT_POSTFIELDSIZE, long(post.json.size()));
  set(CURLOPT_USERAGENT, "trainctl/" TRAINCTL_VERSION);
  set(CURLOPT_WRITEFUNCTION, &forget_body);
  const CURLcode code = curl().easy_perform(handle.get());
  if (code != CURLE_OK)
    return Problem(fmt::format("no answer from {}: {}", server_of_url(post.url), curl().easy_strerror(code)));
  long status = 0;
  curl().easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status >= 200 && status < 300) return Problem::none();
  return Problem(fmt::format("{} answered with status {}", server_of_url(post.url), status));
} catch (const Error& error) {
  return Problem(error.what());
}

std::string server_of_url(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  std::string server = url.substr(0, std::min(url.find_first_of("/?#", begin), url.size()));
  // A name and a password before the host.
  if (const size_t at = server.rfind('@'); at != std::string::npos && at >= begin)
    server.erase(begin, at + 1 - begin);
  return server;
}

}  // namespace trainctl::ckpt
