#include "runtime/spec/resolution.h"
#include "runtime/base/paths.h"
#include "runtime/base/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace trainctl::spec {

std::string pointer_of(const std::string& path) {
  std::string pointer = path.empty() ? "" : "/" + path;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return pointer;
}

std::string absolute_path(Names names, const std::string& text, const std::string& folder) {
  const bool word = names == Names::no_file ||
                    (names == Names::file_or_bytes && data::TokenizerChoice::of(text).is_bytes()) ||
                    (names == Names::program && text.find('/') == std::string::npos);
  if (word || text.empty() || text[0] == '/' || folder.empty()) return text;
  const std::filesystem::path path = std::filesystem::path(folder) / text;
  // `..` behind a symbolic link is the parent of where the link leads, which only the file system knows.
  std::error_code failed;
  const std::filesystem::path resolved = text.find("..") == std::string::npos ? path : std::filesystem::weakly_canonical(path, failed);
  return (failed ? path : resolved).lexically_normal().string();
}

int Resolution::add_source(Source source) {
  sources.push_back(std::move(source));
  return static_cast<int>(sources.size()) - 1;
}

bool Resolution::given_by_user(const std::string& path) const {
  const auto found = places_.find(path);
  return found != places_.end() &&
         sources.at(static_cast<size_t>(found->second.source)).kind != Source::Kind::preset;
}

bool Resolution::given_by_override(const std::string& path) const {
  const auto found = places_.find(path);
  return found != places_.end() &&
         sources.at(static_cast<size_t>(found->second.source)).kind == Source::Kind::override_;
}

bool Resolution::is_auto(const Field& field) const {
  const auto setting = settings.find(field.path);
  return setting != settings.end() && field.accepts_auto &&
         std::holds_alternative<std::string>(setting->second);
}

std::map<std::string, RelatedPlace> Resolution::given_places() const {
  std::map<std::string, RelatedPlace> given;
  for (const auto& [path, place] : places_) {
    const Source& source = sources.at(static_cast<size_t>(place.source));
    const bool in_file = source.kind == Source::Kind::file;
    given[path] = {.file = source.name,
                   .pointer = pointer_of(path),
                   .excerpt = in_file ? excerpt(place) : "",
                   .line = in_file ? place.line : 0,
                   .column = in_file ? place.column : 0,
                   .length = std::max(1, place.length)};
  }
  return given;
}

std::string Resolution::origin(const std::string& path) const {
  const auto found = places_.find(path);
  if (found == places_.end()) return "default";
  const Source& source = sources.at(static_cast<size_t>(found->second.source));
  if (source.kind == Source::Kind::override_) return "--set";
  if (source.kind == Source::Kind::file) return fmt::format("{}:{}", source.name, found->second.line);
  return source.name;
}

bool Resolution::sound(std::initializer_list<const char*> paths) const {
  return std::all_of(paths.begin(), paths.end(),
                     [&](const char* path) { return sound(std::string(path)); });
}

std::string Resolution::excerpt(json::Place place) const {
  if (!place.known() || place.line < 1) return "";
  const std::vector<std::string>& lines = sources.at(static_cast<size_t>(place.source)).lines;
  const size_t index = static_cast<size_t>(place.line) - 1;
  return index < lines.size() ? lines[index] : "";
}

void Resolution::report_at(json::Place place, Diagnostic diagnostic) {
  if (place.known()) {
    const Source& source = sources.at(static_cast<size_t>(place.source));
    diagnostic.file = source.name;
    if (source.kind == Source::Kind::file) {
      diagnostic.line = place.line;
      diagnostic.column = place.column;
      diagnostic.length = std::max(1, place.length);
      diagnostic.excerpt = excerpt(place);
    }
  }
  found_.emplace_back(place, std::move(diagnostic));
}

void Resolution::report(const std::string& code, const std::string& message,
                        const std::vector<std::string>& paths, std::vector<std::string> help,
                        const std::string& label) {
  Diagnostic diagnostic{.code = code, .message = message};
  diagnostic.help = std::move(help);
  std::string values, primary;
  for (const std::string& path : paths) {
    const std::string value = value_text(path);
    if (!value.empty()) values += fmt::format("{}{} = {}", values.empty() ? "" : ", ", path, value);
    if (!given_by_user(path)) continue;
    // What was overridden is what was changed last: the likelier mistake.
    const auto in_file = [&](const std::string& p) {
      return sources.at(static_cast<size_t>(places_.at(p).source)).kind == Source::Kind::file;
    };
    if (primary.empty() || (in_file(primary) && !in_file(path))) primary = path;
  }
  if (!values.empty()) diagnostic.notes.push_back(values);
  diagnostic.pointer = pointer_of(primary.empty() && !paths.empty() ? paths.front() : primary);
  for (const std::string& path : paths) {
    if (path == primary || !given_by_user(path)) continue;
    const json::Place place = places_.at(path);
    const Source& source = sources.at(static_cast<size_t>(place.source));
    const bool in_file = source.kind == Source::Kind::file;
    diagnostic.related.push_back({.file = source.name,
                                  .pointer = pointer_of(path),
                                  .excerpt = in_file ? excerpt(place) : "",
                                  .label = paths.size() > 1 && path == paths[1] ? label : "",
                                  .line = in_file ? place.line : 0,
                                  .column = in_file ? place.column : 0,
                                  .length = std::max(1, place.length)});
  }
  json::Place place = primary.empty() ? json::Place{} : places_.at(primary);
  if (!place.known() && !sources.empty()) place = {.source = 0};
  report_at(place, std::move(diagnostic));
}

std::string Resolution::value_text(const std::string& path) const {
  const auto setting = settings.find(path);
  const Field* field = find_field(path);
  if (field && field->get && sound(path)) return json_of(field->get(job));
  return setting == settings.end() ? "" : json_of(setting->second);
}

std::vector<Diagnostic> Resolution::sorted_diagnostics() const {
  std::vector<std::pair<json::Place, Diagnostic>> sorted = found_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const auto key = [](const json::Place& p) { return std::tuple(p.source, p.line, p.column); };
    return key(a.first) < key(b.first);
  });
  std::vector<Diagnostic> result;
  for (auto& [place, diagnostic] : sorted) result.push_back(std::move(diagnostic));
  return result;
}

bool Resolution::failed() const {
  return std::any_of(found_.begin(), found_.end(),
                     [](const auto& entry) { return entry.second.is_error(); });
}

}  // namespace trainctl::spec
