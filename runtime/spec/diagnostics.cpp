// How diagnostics look: for people, and as JSON.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/spec/parse.h"

namespace trainctl {

namespace {

struct Palette {
  const char *error, *warning, *place, *bold, *off;
};
constexpr Palette kColors = {"\x1b[1;31m", "\x1b[1;33m", "\x1b[36m", "\x1b[1m", "\x1b[0m"};
constexpr Palette kPlain = {"", "", "", "", ""};

/// Characters, not bytes.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Part of a long source line around the caret; `column` is moved along.
std::string window(const std::string& line, size_t& column) {
  constexpr size_t kWidest = 100, kBefore = 60;
  std::vector<std::string> letters;  // one character each, tabs as one blank
  for (const char c : line) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80 && !letters.empty())
      letters.back() += c;
    else
      letters.emplace_back(1, c == '\t' || c == '\r' ? ' ' : c);
  }
  size_t begin = column > kBefore && letters.size() > kWidest ? column - kBefore : 0;
  const size_t end = std::min(letters.size(), begin + kWidest);
  begin = std::min(begin, end);
  std::string text;
  for (size_t i = begin; i < end; ++i) text += letters[i];
  if (begin > 0) text = "… " + text;
  if (end < letters.size()) text += " …";
  column = column - begin + (begin > 0 ? 2 : 0);
  return text;
}

void render_place(std::string& out, const RelatedPlace& place, const Palette& paint) {
  if (place.file.empty()) return;
  const std::string where =
      place.line > 0 ? fmt::format("{}:{}:{}", place.file, place.line, place.column) : place.file;
  const bool show_pointer = !place.pointer.empty() && place.file.rfind("--set", 0) != 0;
  out += fmt::format("  {}-->{} {}{}\n", paint.place, paint.off, where,
                     show_pointer ? "  " + place.pointer : "");
}

void render_excerpt(std::string& out, const RelatedPlace& place, const Palette& paint) {
  if (place.line < 1 || place.excerpt.empty()) return;
  size_t column = static_cast<size_t>(std::max(1, place.column));
  const std::string line = window(place.excerpt, column);
  const std::string number = std::to_string(place.line);
  const size_t room = width_of(line) + 1 > column ? width_of(line) + 1 - column : 1;
  const size_t carets =
      std::clamp<size_t>(static_cast<size_t>(std::max(1, place.length)), 1, std::max<size_t>(1, room));
  const std::string margin(number.size(), ' ');
  out += fmt::format("{}{} |{}\n", paint.place, margin, paint.off);
  out += fmt::format("{}{} |{} {}\n", paint.place, number, paint.off, line);
  out += fmt::format("{}{} |{} {}{}{}{}{}\n", paint.place, margin, paint.off, std::string(column - 1, ' '),
                     paint.error, std::string(carets, '^'), place.label.empty() ? "" : " " + place.label,
                     paint.off);
}

void render_one(std::string& out, const Diagnostic& d, const Palette& paint) {
  const bool error = d.is_error();
  out += fmt::format("{}{}[{}]{}{}: {}{}\n", error ? paint.error : paint.warning,
                     error ? "error" : "warning", d.code, paint.off, paint.bold, d.message, paint.off);
  const RelatedPlace primary{.file = d.file,
                             .pointer = d.pointer,
                             .excerpt = d.excerpt,
                             .line = d.line,
                             .column = d.column,
                             .length = d.length};
  render_place(out, primary, paint);
  render_excerpt(out, primary, paint);
  for (const std::string& note : d.notes) out += fmt::format("   = {}\n", note);
  for (const RelatedPlace& place : d.related) {
    render_place(out, place, paint);
    if (!place.label.empty()) render_excerpt(out, place, paint);  // the note has said the values already
  }
  for (const std::string& help : d.help) out += fmt::format("   = help: {}\n", help);
  out += fmt::format("   = more: trainctl explain {}\n\n", d.code);
}

}  // namespace

std::string render(const std::vector<Diagnostic>& diagnostics, bool color) {
  const Palette& paint = color ? kColors : kPlain;
  std::string out;
  for (const Diagnostic& d : diagnostics) render_one(out, d, paint);
  const size_t errors = static_cast<size_t>(
      std::count_if(diagnostics.begin(), diagnostics.end(), [](const auto& d) { return d.is_error(); }));
  if (!diagnostics.empty())
    out +=
        fmt::format("{}, {}.{}\n", count_of(int64_t(errors), "error"), count_of(int64_t(diagnostics.size() - errors), "warning"),
                    errors > 0 ? " Nothing was started." : "");
  return out;
}

std::string render_json(const std::vector<Diagnostic>& diagnostics) {
  OrderedJson list = OrderedJson::array();
  for (const Diagnostic& d : diagnostics) {
    OrderedJson related = OrderedJson::array();
    for (const RelatedPlace& place : d.related)
      related.push_back(
          {{"path", place.pointer}, {"file", place.file}, {"line", place.line}, {"col", place.column}});
    list.push_back({{"code", d.code},
                    {"severity", d.is_error() ? "error" : "warning"},
                    {"path", d.pointer},
                    {"file", d.file},
                    {"line", d.line},
                    {"col", d.column},
                    {"message", d.message},
                    {"notes", d.notes},
                    {"help", d.help},
                    {"related", related}});
  }
  return dump_json(list, 2);
}

}  // namespace trainctl
