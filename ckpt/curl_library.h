// libcurl, loaded when it is first needed: a program without it runs, and says what to install. Included only
// by what makes requests.
#pragma once
#include <curl/curl.h>

// The macros that check arguments need the functions' own names.
#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace trainctl::ckpt {

/// Its functions.
struct Curl {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
  Curl();
};

/// The loaded library; safe from any thread. Error(kUsage): it is not installed.
const Curl& curl();

}  // namespace trainctl::ckpt
