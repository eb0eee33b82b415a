#include "runtime/observe/live/live_door.h"

#include <fmt/format.h>

#include <charconv>

namespace trainctl::live {
namespace {

bool is_loopback_name(std::string_view host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

/// "localhost:7070" -> "localhost"; "[::1]:7070" -> "::1".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

/// The value of one cookie; "" if it is not there.
std::string_view cookie_value(std::string_view cookies, std::string_view name) {
  for (size_t at = 0; at < cookies.size();) {
    const size_t end = std::min(cookies.find(';', at), cookies.size());
    std::string_view one = cookies.substr(at, end - at);
    while (one.starts_with(' ')) one.remove_prefix(1);
    if (one.starts_with(name) && one.substr(name.size()).starts_with('=')) return one.substr(name.size() + 1);
    at = end + 1;
  }
  return {};
}

}  // namespace

bool LiveAddress::is_loopback() const { return is_loopback_name(host); }

std::string LiveAddress::url(const std::string& machine, const std::string& token) const {
  const bool everywhere = host == "0.0.0.0" || host == "::";
  const std::string name = everywhere                            ? machine
                           : host.find(':') != std::string::npos ? "[" + host + "]"
                                                                 : host;
  return fmt::format("http://{}:{}/{}", name, port, token.empty() ? "" : "?token=" + token);
}

Problem parse_address(std::string_view text, LiveAddress& address) {
  if (text.empty()) return Problem::none();
  const auto bad = [&] {
    return Problem(fmt::format(
        "`{}` is no ADDR:PORT, such as 127.0.0.1:7070 or 0.0.0.0:8080; the port is from 0 to 65535", text));
  };
  std::string_view host, port = text;
  if (const size_t colon = text.rfind(':'); text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return bad();
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && !port.starts_with(':')) return bad();
    if (!port.empty()) port.remove_prefix(1);
  } else if (colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (host.find(':') != std::string_view::npos) return bad();  // IPv6 needs its brackets
  } else if (text.find('.') != std::string_view::npos || text == "localhost") {
    host = text;
    port = "";
  }
  if (!port.empty()) {
    int number = -1;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc() || end != port.data() + port.size() || number < 0 || number > 65535)
      return bad();
    address.port = number;
  } else if (host.empty()) {
    return bad();
  }
  if (!host.empty()) address.host = std::string(host);
  return Problem::none();
}

bool same_secret(std::string_view given, std::string_view secret) {
  // Over the whole secret, also for a shorter text: its length is no secret, its beginning is.
  unsigned char differs = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size(); ++i)
    differs |= static_cast<unsigned char>(secret[i] ^ (i < given.size() ? given[i] : 0));
  return differs == 0;
}

Entry entry_of(const Visitor& visitor, const std::string& token) {
  if (token.empty())
    return is_loopback_name(without_port(visitor.host)) ? Entry::allowed : Entry::foreign_host;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view bearer = visitor.authorization.starts_with(kBearer)
                                      ? std::string_view(visitor.authorization).substr(kBearer.size())
                                      : std::string_view();
  const bool allowed = same_secret(visitor.token, token) | same_secret(bearer, token) |
                       same_secret(cookie_value(visitor.cookie, kTokenCookie), token);
  return allowed ? Entry::allowed : Entry::no_token;
}

}  // namespace trainctl::live
