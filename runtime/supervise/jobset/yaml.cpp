#include "runtime/supervise/jobset/yaml.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "runtime/base/json.h"

namespace trainctl {
namespace {

/// Words of letters, digits and a few marks that begin with a letter: what no YAML reader takes for anything
/// but a text, apart from the words of YAML 1.1.
bool is_plain_scalar(std::string_view text) {
  constexpr std::string_view kWords[] = {"y", "n", "yes", "no", "true", "false", "on", "off", "null"};
  if (text.empty() || !std::isalpha(static_cast<unsigned char>(text[0]))) return false;
  if (!std::all_of(text.begin(), text.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) ||
               std::string_view("-_./").find(c) != std::string_view::npos;
      }))
    return false;
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return char(std::tolower(c)); });
  return std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
}

std::string scalar(const OrderedJson& value) {
  if (!value.is_string()) return dump_json(value);
  const std::string text = value.get<std::string>();
  return is_plain_scalar(text) ? text : json_string(text);
}

std::string key_text(const std::string& key) { return is_plain_scalar(key) ? key : json_string(key); }

bool nested(const OrderedJson& value) { return value.is_structured() && !value.empty(); }

/// `value` as lines that begin at `column`; the first begins where the caller's line ends.
void write(const OrderedJson& value, size_t column, std::string& out) {
  if (!nested(value)) {
    out += (value.is_structured() ? (value.is_array() ? "[]" : "{}") : scalar(value)) + "\n";
    return;
  }
  const std::string indent(column, ' ');
  bool first = true;
  const auto begin_line = [&] {
    if (!first) out += indent;
    first = false;
  };
  if (value.is_array()) {
    for (const auto& item : value) {
      begin_line();
      out += "- ";
      write(item, column + 2, out);
    }
    return;
  }
  for (const auto& [key, item] : value.items()) {
    begin_line();
    out += key_text(key) + ":";
    if (!nested(item)) {
      out += " ";
      write(item, column + 2, out);
    } else {
      out += "\n" + std::string(column + 2, ' ');
      write(item, column + 2, out);
    }
  }
}

}  // namespace

std::string to_yaml(const OrderedJson& value) {
  std::string out;
  write(value, 0, out);
  return out;
}

}  // namespace trainctl
