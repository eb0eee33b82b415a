// Who may read the live page: addresses, tokens, names of hosts. Pure.
#pragma once
#include <string>
#include <string_view>

#include "runtime/base/problem.h"

namespace trainctl::live {

/// Where the page is served. Without a token: only where no other machine can reach it.
struct LiveAddress {
  std::string host = "127.0.0.1";
  int port = 7070;
  bool is_loopback() const;
  /// For a browser; of an address that means all of a machine's, with `machine` as its name.
  std::string url(const std::string& machine, const std::string& token) const;
};
/// Reads "ADDR:PORT", "ADDR", "PORT", "[ADDR]:PORT" (IPv6) into `address`; "" leaves it as it is.
Problem parse_address(std::string_view text, LiveAddress& address);

/// What a request says about its sender.
struct Visitor {
  std::string host;           ///< the header Host
  std::string token;          ///< of the address: ?token=
  std::string authorization;  ///< "Bearer TOKEN"
  std::string cookie;         ///< the header Cookie
};
inline constexpr const char* kTokenCookie = "trainctl_token";

/// foreign_host: a page of another site asks through a name that leads to this machine (DNS rebinding).
enum class Entry { allowed, no_token, foreign_host };
/// `token`: "" on a loopback address, where the header Host must name it.
Entry entry_of(const Visitor& visitor, const std::string& token);

/// Takes as long wherever the texts differ.
bool same_secret(std::string_view given, std::string_view secret);

}  // namespace trainctl::live
