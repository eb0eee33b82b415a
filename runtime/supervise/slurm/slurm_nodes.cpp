#include "runtime/supervise/slurm/slurm_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "runtime/base/error.h"
#include "runtime/base/units.h"

namespace trainctl {
namespace {

constexpr size_t kMostNodes = 1'000'000;

[[noreturn]] void refuse(std::string_view what, std::string_view text, std::string_view why) {
  throw Error(ErrorCode::kUsage, fmt::format("{} '{}' is not of Slurm's form: {}", what, text, why));
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Nothing where `text` is no number of at most 18 digits.
std::optional<int64_t> number(std::string_view text) {
  if (!all_digits(text) || text.size() > 18) return std::nullopt;
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string padded(int64_t value, size_t width) { return fmt::format("{:0{}}", value, width); }

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// "08-11,20": the texts 08 09 10 11 20.
std::vector<std::string> bracket(std::string_view inside, std::string_view list) {
  std::vector<std::string> texts;
  for (const std::string_view range : split(inside, ',')) {
    const size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const auto from = number(first), to = number(last);
    if (!from || !to) refuse("the node list", list, fmt::format("'{}' is no range of numbers", range));
    if (*to < *from) refuse("the node list", list, fmt::format("the range '{}' runs backwards", range));
    if (size_t(*to - *from) >= kMostNodes - texts.size())
      refuse("the node list", list, "it has more than a million nodes");
    for (int64_t value = *from; value <= *to; ++value) texts.push_back(padded(value, first.size()));
  }
  return texts;
}

/// One element of a list, "r[0-1]c[0-1]", appended to `nodes`.
void expand(std::string_view element, std::string_view list, std::vector<std::string>& nodes) {
  std::vector<std::string> names = {""};
  while (!element.empty()) {
    const size_t open = element.find_first_of("[]");
    const std::string_view plain = element.substr(0, open);
    for (std::string& name : names) name += plain;
    if (open == std::string_view::npos) break;
    const size_t close = element.find(']', open);
    if (element[open] == ']' || close == std::string_view::npos)
      refuse("the node list", list, "a bracket has no partner");
    const std::vector<std::string> texts = bracket(element.substr(open + 1, close - open - 1), list);
    if (names.size() * texts.size() + nodes.size() > kMostNodes)
      refuse("the node list", list, "it has more than a million nodes");
    std::vector<std::string> longer;
    longer.reserve(names.size() * texts.size());
    for (const std::string& name : names)
      for (const std::string& text : texts) longer.push_back(name + text);
    names = std::move(longer);
    element.remove_prefix(close + 1);
  }
  nodes.insert(nodes.end(), std::make_move_iterator(names.begin()), std::make_move_iterator(names.end()));
}

/// A name as its head and the digits at its end, at most 18 of them.
struct Numbered {
  std::string_view head, digits;
};
Numbered numbered(std::string_view name) {
  size_t at = name.size();
  while (at > 0 && name.size() - at < 18 && name[at - 1] >= '0' && name[at - 1] <= '9') --at;
  return {name.substr(0, at), name.substr(at)};
}

}  // namespace

std::vector<std::string> parse_node_list(std::string_view text) {
  std::vector<std::string> nodes;
  size_t begin = 0;
  int depth = 0;
  for (size_t at = 0; at <= text.size(); ++at) {
    const char c = at < text.size() ? text[at] : ',';
    if (static_cast<unsigned char>(c) <= ' ') refuse("the node list", text, "it holds a blank");
    if (c == '[' && ++depth > 1) refuse("the node list", text, "a bracket is inside a bracket");
    if (c == ']') depth = std::max(0, depth - 1);
    if (at < text.size() && (c != ',' || depth > 0)) continue;
    if (at > begin) expand(text.substr(begin, at - begin), text, nodes);
    begin = at + 1;
  }
  return nodes;
}

std::string compress_node_list(const std::vector<std::string>& nodes) {
  std::string list;
  for (size_t i = 0; i < nodes.size();) {
    const Numbered first = numbered(nodes[i]);
    // The neighbours with the same head, as ranges of growing numbers.
    std::string ranges;
    size_t end = i;
    while (end < nodes.size() && !first.digits.empty()) {
      const Numbered begin = numbered(nodes[end]);
      if (begin.head != first.head || begin.digits.empty()) break;
      size_t last = end;
      int64_t value = *number(begin.digits);
      while (last + 1 < nodes.size()) {
        const Numbered next = numbered(nodes[last + 1]);
        if (next.head != first.head || next.digits != padded(value + 1, begin.digits.size())) break;
        ++value;
        ++last;
      }
      if (!ranges.empty()) ranges += ',';
      ranges += begin.digits;
      if (last > end) ranges += fmt::format("-{}", numbered(nodes[last]).digits);
      end = last + 1;
    }
    if (!list.empty()) list += ',';
    if (end <= i + 1) {
      list += nodes[i++];
    } else {
      list += fmt::format("{}[{}]", first.head, ranges);
      i = end;
    }
  }
  return list;
}

std::vector<int> parse_repeated_counts(std::string_view text) {
  std::vector<int> counts;
  for (const std::string_view element : split(text, ',')) {
    const size_t open = element.find("(x");
    const auto count = number(element.substr(0, open));
    std::optional<int64_t> times = 1;
    if (open != std::string_view::npos)
      times =
          element.ends_with(')') ? number(element.substr(open + 2, element.size() - open - 3)) : std::nullopt;
    if (!count || !times || *count > 1'000'000'000 || *times < 1 ||
        size_t(*times) > kMostNodes - counts.size())
      refuse("the list of counts", text, fmt::format("'{}' is no count like 4 or 4(x3)", element));
    counts.insert(counts.end(), size_t(*times), int(*count));
  }
  return counts;
}

std::string switch_path_of(std::string_view address, std::string_view pattern) {
  const auto kinds = split(pattern, '.');
  if (kinds.size() < 2 || kinds.back() != "node") return "";
  if (!std::all_of(kinds.begin(), kinds.end() - 1, [](std::string_view kind) { return kind == "switch"; }))
    return "";
  // A node's name may hold dots, a switch's may not: as many parts as the pattern has switches.
  size_t end = 0;
  for (size_t i = 0; i + 1 < kinds.size(); ++i) {
    end = address.find('.', i == 0 ? 0 : end + 1);
    if (end == std::string_view::npos) return "";
  }
  return std::string(address.substr(0, end));
}

std::optional<double> parse_time_limit(std::string_view text) {
  if (text.empty() || text == "UNLIMITED" || text == "INFINITE") return std::nullopt;
  const std::string_view whole = text;
  const auto wrong = [&] {
    refuse("the time limit", whole, "use minutes, hours:minutes:seconds or days-hours:minutes:seconds");
  };
  int64_t days = 0;
  const size_t dash = text.find('-');
  if (dash != std::string_view::npos) {
    const auto value = number(text.substr(0, dash));
    if (!value || *value > 100'000) wrong();
    days = *value;
    text.remove_prefix(dash + 1);
  }
  std::vector<int64_t> parts;
  for (const std::string_view part : split(text, ':')) {
    const auto value = number(part);
    if (!value || *value > 1'000'000'000) wrong();
    parts.push_back(*value);
  }
  if (parts.size() > 3) wrong();
  // After days the first part is hours; else one part is minutes, two are minutes and seconds.
  if (dash != std::string_view::npos) {
    parts.resize(3, 0);
  } else {
    if (parts.size() == 1) parts.push_back(0);
    if (parts.size() == 2) parts.insert(parts.begin(), 0);
  }
  return double(days) * kDayS + double(parts[0]) * kHourS + double(parts[1]) * kMinuteS + double(parts[2]);
}

}  // namespace trainctl
