#include "runtime/observe/report/page.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>

#include "runtime/base/ensure.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/observe/report/page_files.h"

namespace trainctl::report {
namespace {

/// Of the bytes that `hex` names.
std::string base64_of_hex(std::string_view hex) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes, text;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += char(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? uint8_t(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::string hash_source(std::string_view text) {
  return fmt::format("'sha256-{}'", base64_of_hex(sha256_hex(text)));
}

/// The whole script in a scope of its own.
std::string script_text() { return fmt::format("'use strict';\n(() => {{\n{}}})();\n", kPageScript); }

/// The template with each "@NAME@" replaced, in one pass: what is put in is not looked at again.
std::string filled(std::string_view page, const std::map<std::string, std::string>& parts) {
  std::string out;
  for (size_t at = 0; at < page.size();) {
    const size_t begin = page.find('@', at);
    const size_t end = begin == std::string_view::npos ? begin : page.find('@', begin + 1);
    if (end == std::string_view::npos) return out + std::string(page.substr(at));
    const auto part = parts.find(std::string(page.substr(begin + 1, end - begin - 1)));
    if (part == parts.end()) {
      out += page.substr(at, end - at);
      at = end;
      continue;
    }
    out += page.substr(at, begin - at);
    out += part->second;
    at = end + 1;
  }
  return out;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  return out;
}

std::string script_json(const OrderedJson& data) {
  std::string out;
  const std::string text = dump_json(data);
  for (size_t i = 0; i < text.size(); ++i) switch (text[i]) {
      case '<': out += "\\u003c"; break;
      case '>': out += "\\u003e"; break;
      case '&': out += "\\u0026"; break;
      default:
        // U+2028 and U+2029 end a line of a script.
        if (text.compare(i, 2, "\xe2\x80") == 0 && i + 2 < text.size() &&
            (text[i + 2] == '\xa8' || text[i + 2] == '\xa9')) {
          out += text[i + 2] == '\xa8' ? "\\u2028" : "\\u2029";
          i += 2;
        } else {
          out += text[i];
        }
    }
  return out;
}

std::string page_html(const OrderedJson& data) {
  const std::string script = script_text(), style(kPageStyle);
  const bool live = data.value("live", false);
  const OrderedJson& runs = data.at("runs");
  const std::string title = data.contains("simulation")
                                ? data.at("simulation").at("job").get<std::string>() + ", simulated"
                            : runs.size() == 1 ? runs[0].at("id").get<std::string>()
                                               : fmt::format("{} runs", runs.size());
  return filled(kPageTemplate,
                {{"POLICY", html_text(fmt::format(
                                "default-src 'none'; script-src {}; style-src {}; img-src data:; "
                                "connect-src {}; base-uri 'none'; form-action 'none'",
                                hash_source(script), hash_source(style), live ? "'self'" : "'none'"))},
                 {"TITLE", html_text(title + " · trainctl")},
                 {"STYLE", style},
                 {"DATA", script_json(data)},
                 {"SCRIPT", script}});
}

}  // namespace trainctl::report
