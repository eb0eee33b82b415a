#include "runtime/spec/parse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/spec/changes.h"
#include "runtime/spec/presets.h"
#include "runtime/spec/resolution.h"

namespace trainctl {

namespace {

using spec::Field;
using spec::json_of;
using spec::Resolution;
using spec::Setting;

/// Whether the field is "auto" in the resolved spec: so that it can be resumed on another mesh. Lanes become a
/// number, because they are fixed when the run is launched.
bool stays_auto(const Resolution& r, const Field& field) {
  return r.is_auto(field) && !field.decided_at_birth;
}

/// The value of a field in the resolved spec, from JobSpec or from the settings.
std::string resolved_text(const Resolution& r, const Field& field) {
  if (stays_auto(r, field)) return "\"auto\"";
  if (field.get) return json_of(field.get(r.job));
  const auto setting = r.settings.find(field.path);
  return setting == r.settings.end() ? "" : json_of(setting->second);
}

/// The path that gave the field its value: its own, or that of its alternative in another unit.
std::string giver_in_resolution(const Resolution& r, const std::string& path) {
  if (r.given(path)) return path;
  for (const spec::Alternatives& pair : spec::alternatives())
    if (pair.second == path && r.given(pair.first)) return pair.first;
  return path;
}

/// Whether the resolved spec of `job` has no line of the field.
bool is_left_out(const Field& field, const JobSpec& job) {
  return field.left_out_as_default && json_of(field.get(job)) == json_of(*field.fallback);
}

/// Whether the preset, if there is one, has a value for the field.
bool is_said(const std::string& preset, const std::string& path) {
  const spec::Preset* found = spec::find_preset(preset);
  if (!found || !path.starts_with("model.")) return false;
  const Json model = parse_json(found->model_json());
  const std::string rest = path.substr(6), section = rest.substr(0, rest.find('.'));
  if (section == rest) return model.contains(rest);
  return model.contains(section) && model.at(section).contains(rest.substr(section.size() + 1));
}

/// Every effective value, in the order of the table.
std::vector<EffectiveValue> effective_values(const Resolution& r) {
  std::vector<EffectiveValue> values;
  for (const Field& field : spec::fields()) {
    if (!field.in_resolved || field.set_in_source) continue;
    // A default that was given against the preset's value would be the preset's again.
    if (is_left_out(field, r.job) && !is_said(r.job.model.preset, field.path)) continue;
    if (field.where_learned == spec::WhereLearned::nothing && !r.job.model.is_rotary()) continue;
    if (field.type == spec::Type::source_list) {
      const std::vector<DataSource>& sources = r.job.data.*field.sources;
      for (size_t i = 0; i < sources.size(); ++i)
        for (const Field& f : spec::fields()) {
          if (f.section() != field.path + "[]") continue;
          const std::string path = fmt::format("{}.{}.{}", field.path, i, f.leaf());
          if (const std::optional<Setting> setting = f.get_from_source(sources[i]))
            values.push_back(
                {path, json_of(*setting), json_of(*setting), r.origin(path), r.given_by_override(path)});
        }
      continue;
    }
    const std::string text = resolved_text(r, field);
    const std::string meaning = field.get ? json_of(field.get(r.job)) : text;
    const std::string giver = giver_in_resolution(r, field.path);
    values.push_back({field.path, text, meaning, r.origin(giver), r.given_by_override(giver),
                      stays_auto(r, field)});
  }
  return values;
}

/// Puts `value` at "data.train.0.path"; numbers index lists.
void put(OrderedJson& tree, const std::string& path, OrderedJson value) {
  OrderedJson* node = &tree;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    node = !key.empty() && key[0] >= '0' && key[0] <= '9' ? &(*node)[std::stoul(key)] : &(*node)[key];
    begin = end + 1;
  }
  *node = std::move(value);
}

std::string resolved_json_of(const std::vector<EffectiveValue>& values) {
  OrderedJson tree = OrderedJson::object();
  for (const EffectiveValue& value : values) put(tree, value.path, parse_ordered_json(value.value));
  return dump_json(tree, 2) + "\n";
}

std::string origins_json_of(const std::vector<EffectiveValue>& values) {
  OrderedJson origins = OrderedJson::object();
  for (const EffectiveValue& value : values) origins[value.path] = value.origin;
  return dump_json(origins, 2) + "\n";
}

/// The values that no resume may change, by path.
std::vector<std::pair<std::string, std::string>> fixed_values(const JobSpec& job) {
  std::vector<std::pair<std::string, std::string>> values;
  const JobSpec preset{.model = with_family_defaults(job.model)};
  for (const Field& field : spec::fields()) {
    if (field.by_family && field.get(job) == field.get(preset)) continue;
    if (field.change < Change::branch || !field.in_resolved || field.set_in_source) continue;
    if (is_left_out(field, job)) continue;
    if (field.type != spec::Type::source_list) {
      values.emplace_back(field.path, json_of(field.get(job)));
      continue;
    }
    const std::vector<DataSource>& sources = job.data.*field.sources;
    values.emplace_back(field.path, fmt::format("{} sources", sources.size()));
    for (size_t i = 0; i < sources.size(); ++i)
      for (const Field& f : spec::fields())
        if (f.section() == field.path + "[]" && f.change >= Change::branch)
          if (const std::optional<Setting> setting = f.get_from_source(sources[i]))
            values.emplace_back(fmt::format("{}.{}.{}", field.path, i, f.leaf()), json_of(*setting));
  }
  return values;
}

std::string hash_of(const JobSpec& job) {
  std::string text;
  for (const auto& [path, value] : fixed_values(job)) text += path + "=" + value + "\n";
  return hex64(xxh3(text));
}

}  // namespace

bool ParsedJob::ok() const {
  return std::none_of(diagnostics.begin(), diagnostics.end(),
                      [](const Diagnostic& d) { return d.is_error(); });
}

ParsedJob parse_job(const ParseInput& input) {
  Resolution r;
  r.is_of_run = input.is_of_run;
  ParsedJob parsed;
  json::Value tree = spec::merge_layers(input, r);
  if (!r.unreadable) {
    spec::merge_preset(tree, r);
    spec::resolve_tree(tree, r);
  }
  if (!r.unreadable && !r.incomplete) {
    spec::derive(r);
    spec::check_model(r);
    spec::check_parallelism(r);
    spec::check_training(r);
    spec::check_operation(r);
    spec::check_watch(r);
    spec::check_size(r);
  }
  parsed.diagnostics = r.sorted_diagnostics();
  parsed.job = r.job;
  parsed.places = r.given_places();
  if (!r.failed()) {
    parsed.values = effective_values(r);
    parsed.resolved_json = resolved_json_of(parsed.values);
    parsed.origins_json = origins_json_of(parsed.values);
    parsed.hash = hash_of(r.job);
  }
  return parsed;
}

Diagnostic diagnostic_at(const ParsedJob& job, const std::string& path, const std::string& code, const std::string& message) {
  Diagnostic diagnostic{.code = code, .message = message, .pointer = spec::pointer_of(path)};
  const auto found = job.places.find(path);
  if (found == job.places.end()) return diagnostic;
  const RelatedPlace& place = found->second;
  diagnostic.file = place.file;
  diagnostic.line = place.line;
  diagnostic.column = place.column;
  diagnostic.length = place.length;
  diagnostic.excerpt = place.excerpt;
  return diagnostic;
}

std::string stage_layers_setting(const std::vector<int64_t>& layers) {
  return fmt::format("parallelism.stage_layers=[{}]", fmt::join(layers, ","));
}

ParsedJob with_decided(const ParsedJob& job, const std::vector<std::string>& values, const std::string& origin) {
  ParsedJob decided = parse_job({.text = job.resolved_json, .file = "job.json", .overrides = values, .environment = {}});
  ENSURE(decided.ok(), "{}", render(decided.diagnostics, false));
  for (EffectiveValue& value : decided.values) {
    const auto before = std::find_if(job.values.begin(), job.values.end(),
                                     [&](const EffectiveValue& v) { return v.path == value.path; });
    const bool is_decided = value.by_override || before == job.values.end();
    value.origin = is_decided ? origin : before->origin;
    value.by_override = !is_decided && before->by_override;
  }
  decided.origins_json = origins_json_of(decided.values);
  decided.diagnostics = job.diagnostics;
  decided.places = job.places;
  return decided;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const spec::Preset& preset : spec::presets()) names.push_back(preset.name);
  return names;
}

}  // namespace trainctl
