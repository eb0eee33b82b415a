// The layers of a spec, weakest first: preset < extends < file < environment < --set.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/paths.h"
#include "runtime/spec/presets.h"
#include "runtime/spec/resolution.h"
#include "runtime/spec/suggest.h"

namespace trainctl::spec {

namespace {

using json::Kind;
using json::Value;

constexpr size_t kMaxExtends = 16;  // depth of specs that extend specs

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

/// Where relative paths in the file `name` start.
std::string start_of_paths(const std::string& name) {
  return absolute_path(Names::file, folder_of(name).empty() ? "." : folder_of(name), current_folder());
}

Value* find_path(Value& tree, const std::string& path) {
  Value* node = &tree;
  for (const std::string& key : split(path, '.')) {
    node = node->kind == Kind::object ? node->find(key) : nullptr;
    if (!node) return nullptr;
  }
  return node;
}

void erase_path(Value& tree, const std::string& path) {
  const size_t dot = path.rfind('.');
  Value* parent = dot == std::string::npos ? &tree : find_path(tree, path.substr(0, dot));
  if (parent)
    std::erase_if(parent->members, [&](const json::Member& m) { return m.key == path.substr(dot + 1); });
}

bool has_value(Value& tree, const std::string& path) {
  const Value* node = find_path(tree, path);
  return node && node->kind != Kind::null;
}

/// A layer that gives one of two alternatives replaces the other where a weaker layer gave it.
void drop_replaced_alternatives(Value& base, Value& layer) {
  for (const Alternatives& pair : alternatives()) {
    const bool first = has_value(layer, pair.first), second = has_value(layer, pair.second);
    if (first && !second) erase_path(base, pair.second);
    if (second && !first) erase_path(base, pair.first);
  }
}

void place_everywhere(Value& value, json::Place place) {
  value.place = place;
  for (Value& item : value.items) place_everywhere(item, place);
  for (json::Member& member : value.members) {
    member.place = place;
    place_everywhere(member.value, place);
  }
}

/// A text in place of a section is the value of one of its fields.
void expand_words(Value& tree) {
  for (const Section& section : sections()) {
    Value* value = section.word_field.empty() ? nullptr : find_path(tree, section.path);
    if (!value || value->kind != Kind::text) continue;
    Value object;
    object.kind = Kind::object;
    object.place = value->place;
    object.members.push_back({section.word_field, value->place, std::move(*value)});
    *value = std::move(object);
  }
}

void report_problems(const std::vector<json::Problem>& problems, Resolution& r, json::Place instead = {}) {
  for (const json::Problem& problem : problems) {
    Diagnostic diagnostic{.code = problem.code, .message = problem.message};
    if (!problem.help.empty()) diagnostic.help.push_back(problem.help);
    r.report_at(instead.known() ? instead : problem.place, std::move(diagnostic));
  }
}

class FileLayers {
 public:
  explicit FileLayers(Resolution& resolution) : r_(resolution) {}

  Value read(const std::string& name, const std::string& text, const std::string& folder) {
    const int source = r_.add_source({Source::Kind::file, name, split(text, '\n'), folder});
    open_.push_back(name);
    json::ReadResult result = json::read(text, source);
    report_problems(result.problems, r_);
    for (const json::Problem& problem : result.problems)
      r_.unreadable = r_.unreadable || problem.code == "E0100";
    Value merged;
    merged.kind = Kind::object;
    merged.place = {.source = source, .line = 1, .column = 1, .length = 1};
    if (r_.unreadable) {
      open_.pop_back();
      return merged;
    }
    if (result.value.kind != Kind::object) {
      r_.unreadable = true;
      r_.report_at(result.value.place,
                   {.code = "E0107",
                    .message = fmt::format("a job spec is an object, not {}", name_of(result.value.kind)),
                    .help = {"it starts with { and ends with }; `trainctl init` writes one"}});
    } else {
      expand_words(result.value);
      extend(merged, result.value, name);
      drop_replaced_alternatives(merged, result.value);
      json::merge(merged, result.value);
    }
    open_.pop_back();
    return merged;
  }

 private:
  void extend(Value& merged, Value& file, const std::string& name) {
    const Value* list = file.find("extends");
    if (!list || list->kind != Kind::list) return;  // the field table will say what is wrong with it
    for (const Value& item : list->items) {
      if (item.kind != Kind::text) continue;
      const std::string path = item.text.rfind('/', 0) == 0 ? item.text : folder_of(name) + item.text;
      if (std::find(open_.begin(), open_.end(), path) != open_.end() || open_.size() > kMaxExtends) {
        r_.incomplete = true;
        r_.report_at(item.place, {.code = "E0106",
                                  .message = fmt::format("{} extends itself", path),
                                  .pointer = "/extends",
                                  .help = {"take it out of one of the `extends` lists"}});
        continue;
      }
      try {
        Value base = read(path, real_file_system().read_text(path), start_of_paths(path));
        drop_replaced_alternatives(merged, base);
        json::merge(merged, base);
      } catch (const Error& error) {
        r_.incomplete = true;
        r_.report_at(item.place,
                     {.code = "E0106",
                      .message = fmt::format("cannot read the spec to extend: {}", error.what()),
                      .pointer = "/extends",
                      .help = {fmt::format("paths are relative to {}", name)}});
      }
    }
  }

  Resolution& r_;
  std::vector<std::string> open_;
};

/// An override's text as the field's type reads it.
Value override_value(const std::string& path, const std::string& text, json::Place place, Resolution& r) {
  Value raw;
  raw.kind = Kind::text;
  raw.text = text;
  raw.place = place;
  const Field* field = find_field(path);
  const size_t dot = path.rfind('.');
  const Field* parent = dot == std::string::npos ? nullptr : find_field(path.substr(0, dot));
  if (!field && parent && parent->type == Type::text_map) return raw;
  const bool number =
      field && field->accepts_count && text.find_first_not_of("-.0123456789") == std::string::npos;
  const bool wants_text = field && (field->type == Type::text || (field->type == Type::choice && !number));
  if (wants_text && text != "null" && text.substr(0, 1) != "\"") return raw;
  const bool is_json = !text.empty() && (text[0] == '[' || text[0] == '{' || text[0] == '"');
  if (field && field->type == Type::text_list && !is_json && text != "null") {
    Value list;
    list.kind = Kind::list;
    for (const std::string& word : split(text, ',')) {
      if (text.empty()) break;
      list.items.push_back(raw);
      list.items.back().text = word;
    }
    list.place = place;
    return list;
  }
  const bool bare_list = field && field->type == Type::integer_list && !is_json && !text.empty() &&
                         text.find_first_not_of("-., 0123456789") == std::string::npos;
  json::ReadResult read = json::read(bare_list ? "[" + text + "]" : text, place.source);
  if (!read.problems.empty()) {
    if (is_json) report_problems(read.problems, r, place);
    return raw;  // a bare word or a quantity with a unit
  }
  place_everywhere(read.value, place);
  return read.value;
}

/// Walks to the parent of `keys`, making objects and list entries on the way. Null after a reported
/// mistake.
Value* make_parent(Value& tree, const std::vector<std::string>& keys, json::Place place, Resolution& r) {
  Value* node = &tree;
  std::string path;
  for (size_t i = 0; i + 1 <= keys.size(); ++i) {
    const bool last = i + 1 == keys.size();
    if (node->kind == Kind::list) {
      const bool digits =
          std::all_of(keys[i].begin(), keys[i].end(), [](char c) { return c >= '0' && c <= '9'; });
      const size_t index = digits && keys[i].size() < 9 ? std::stoul(keys[i]) : node->items.size() + 1;
      if (index > node->items.size()) {
        r.report_at(place,
                    {.code = "E0105",
                     .message = fmt::format("`{}` is not an entry of {}, which has {}", keys[i], path,
                                            node->items.size()),
                     .pointer = pointer_of(path),
                     .help = {fmt::format("entries count from 0; {} adds one", node->items.size())}});
        return nullptr;
      }
      if (index == node->items.size()) {
        node->items.emplace_back();
        node->items.back().place = place;
      }
      if (last) return node;
      node = &node->items[index];
    } else {
      if (last) break;
      Value* child = node->find(keys[i]);
      if (!child) {
        node->members.push_back({keys[i], place, {}});
        child = &node->members.back().value;
      }
      node = child;
    }
    path += (path.empty() ? "" : ".") + keys[i];
    const Field* field = find_field(path);
    const Kind wanted = field && field->type == Type::source_list ? Kind::list : Kind::object;
    if (node->kind != Kind::object && node->kind != Kind::list) {
      *node = Value{};
      node->kind = wanted;
      node->place = place;
    }
  }
  return node;
}

void set_child(Value& parent, const std::string& key, Value value, json::Place place) {
  if (parent.kind == Kind::list) {
    json::merge(parent.items.at(std::stoul(key)), value);
    return;
  }
  Value patch;
  patch.kind = Kind::object;
  patch.place = place;
  patch.members.push_back({key, place, std::move(value)});
  json::merge(parent, patch);
}

void apply_override(Value& tree, const std::string& path, const std::string& text, Source source,
                    Resolution& r) {
  const json::Place place{.source = r.add_source(std::move(source))};
  const std::vector<std::string> keys = split(path, '.');
  const bool empty_key =
      std::any_of(keys.begin(), keys.end(), [](const std::string& key) { return key.empty(); });
  if (empty_key || !json::valid_utf8(path) || !json::valid_utf8(text)) {
    r.report_at(place, {.code = "E0104",
                        .message = "this override names no field",
                        .help = {"write PATH=VALUE, e.g. schedule.lr=3e-4"}});
    return;
  }
  if (keys[0] == "extends") {
    r.report_at(place, {.code = "E0104",
                        .message = "`extends` can only be in a file",
                        .pointer = "/extends",
                        .help = {"write it into the spec"}});
    return;
  }
  Value value = override_value(path, text, place, r);
  if (const Value* below = find_path(tree, path);
      below && below->kind != Kind::null && (below->kind != value.kind || below->text != value.text))
    r.note_changed(path);
  for (const Alternatives& pair : alternatives()) {
    if (value.kind == Kind::null || (path != pair.first && path != pair.second)) continue;
    const std::string other = path == pair.first ? pair.second : pair.first;
    if (has_value(tree, other))
      r.report_at(place,
                  {.code = "W0101",
                   .message = fmt::format("{} takes the place of {}, which is given, too", path, other),
                   .help = {fmt::format("remove {} if it should never count", other)}});
    erase_path(tree, other);
  }
  if (Value* parent = make_parent(tree, keys, place, r))
    set_child(*parent, keys.back(), std::move(value), place);
  expand_words(tree);
}

/// TRAINCTL_SET__a__b -> a.b; field names are lower-case, keys of an environment map are not.
std::string path_of_variable(const std::string& name) {
  std::string path;
  const std::string rest = name.substr(std::min(name.size(), std::string("TRAINCTL_SET__").size()));
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest.compare(i, 2, "__") == 0) {
      path += '.';
      ++i;
    } else {
      const bool verbatim = path.rfind("launcher.env.", 0) == 0;
      path += verbatim ? rest[i] : static_cast<char>(std::tolower(static_cast<unsigned char>(rest[i])));
    }
  }
  return path;
}

}  // namespace

json::Value merge_layers(const ParseInput& input, Resolution& r) {
  Value tree = FileLayers(r).read(input.file, input.text, input.folder.empty() ? start_of_paths(input.file) : input.folder);
  if (r.unreadable) return tree;
  auto environment = input.environment;
  std::sort(environment.begin(), environment.end());
  for (const auto& [name, text] : environment)
    apply_override(tree, path_of_variable(name), text, {Source::Kind::environment, name, {}, current_folder()}, r);
  for (const std::string& text : input.overrides) {
    const size_t equals = text.find('=');
    Source source{Source::Kind::override_, "--set " + text, {}, current_folder()};
    if (equals == std::string::npos) {
      const json::Place place{.source = r.add_source(std::move(source))};
      r.report_at(place, {.code = "E0104",
                          .message = "this override has no `=`",
                          .help = {"write PATH=VALUE, e.g. schedule.lr=3e-4"}});
      continue;
    }
    apply_override(tree, text.substr(0, equals), text.substr(equals + 1), std::move(source), r);
  }
  return tree;
}

void merge_preset(Value& tree, Resolution& r) {
  const Value* name = find_path(tree, "model.preset");
  if (!name || name->kind != Kind::text || name->text.empty()) return;
  const Preset* preset = find_preset(name->text);
  if (!preset) {
    Diagnostic diagnostic{.code = "E0209",
                          .message = fmt::format("there is no preset `{}`", name->text),
                          .pointer = "/model/preset"};
    const std::vector<std::string> near = closest(name->text, preset_names(), 1);
    if (!near.empty()) diagnostic.help.push_back(fmt::format("did you mean `{}`?", near[0]));
    diagnostic.help.push_back(fmt::format("presets: {}", fmt::join(preset_names(), ", ")));
    r.report_at(name->place, std::move(diagnostic));
    return;
  }
  const int source = r.add_source({Source::Kind::preset, "preset " + preset->name, {}, {}});
  json::ReadResult shape = json::read(preset->model_json(), source);
  ENSURE(shape.problems.empty(), "preset {} is not JSON", preset->name);
  Value* model = tree.find("model");
  json::merge(shape.value, *model);
  shape.value.place = model->place;
  *model = std::move(shape.value);
}

}  // namespace trainctl::spec
