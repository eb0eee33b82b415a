#include "ckpt/curl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

#include "runtime/base/error.h"

namespace trainctl::ckpt {

Curl::Curl() {
  void* const library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw Error(ErrorCode::kUsage,
                "object stores and webhooks need libcurl.so.4, which is not installed here: apt-get install "
                "libcurl4");
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (!function) throw Error(ErrorCode::kUsage, fmt::format("libcurl.so.4 has no {}", name));
  };
  find(global_init, "curl_global_init");
  find(easy_init, "curl_easy_init");
  find(easy_reset, "curl_easy_reset");
  find(easy_setopt, "curl_easy_setopt");
  find(easy_getinfo, "curl_easy_getinfo");
  find(easy_perform, "curl_easy_perform");
  find(easy_cleanup, "curl_easy_cleanup");
  find(easy_strerror, "curl_easy_strerror");
  find(slist_append, "curl_slist_append");
  find(slist_free_all, "curl_slist_free_all");
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    throw Error(ErrorCode::kUsage, "libcurl cannot be started");
}

const Curl& curl() {
  static const Curl instance;
  return instance;
}

}  // namespace trainctl::ckpt
