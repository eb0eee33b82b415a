// One request that brings a web server an object: an alert's webhook.
#pragma once
#include <string>

#include "runtime/base/problem.h"

namespace trainctl::ckpt {

struct HttpPost {
  std::string url;        ///< http:// or https://
  std::string json;       ///< the body
  double timeout_s = 10;  ///< of the whole request
};

/// Sends it and waits for the answer, at most timeout_s. A problem is what kept the server from taking it: no
/// answer, or one that is not 2xx. Its sentence names the server alone, because the rest of a webhook's
/// address is often a secret. Safe from any thread; never throws.
Problem http_post(const HttpPost& post);

/// "https://host:port" of a URL.
std::string server_of_url(const std::string& url);

}  // namespace trainctl::ckpt
