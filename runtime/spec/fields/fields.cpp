#include "runtime/spec/fields/fields.h"

#include <cmath>
#include <map>

#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/spec/fields/field_builder.h"

namespace trainctl {

const char* name_of(Change change) {
  switch (change) {
    case Change::free: return "free";
    case Change::numerics: return "changes numerics";
    case Change::branch: return "needs a branch";
    case Change::never: return "needs a new run";
  }
  return "?";
}

}  // namespace trainctl

namespace trainctl::spec {

namespace {

struct Tables {
  std::vector<Field> fields;
  std::vector<Section> sections;
  std::map<std::string, size_t> field_index, section_index;
};

const Tables& tables() {
  static const Tables all = [] {
    Tables t;
    declare_model_and_data(t.fields, t.sections);
    declare_training(t.fields, t.sections);
    declare_operation(t.fields, t.sections);
    declare_slurm(t.fields, t.sections);
    for (size_t i = 0; i < t.fields.size(); ++i) {
      const bool fresh = t.field_index.emplace(t.fields[i].path, i).second;
      ENSURE(fresh, "field {} is declared twice", t.fields[i].path);
    }
    for (size_t i = 0; i < t.sections.size(); ++i) t.section_index.emplace(t.sections[i].path, i);
    return t;
  }();
  return all;
}

std::string amount(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return fmt::format("{}", static_cast<int64_t>(value));
  return fmt::format("{}", value);
}

std::string range_of(const Field& field) {
  constexpr double kTechnical = 1e12;  // limits from here on only guard the arithmetic
  const bool low = std::isfinite(field.min), high = field.max < kTechnical;
  if (low && high && field.min == field.max) return fmt::format(", always {}", amount(field.min));
  if (low && high && field.above_min)
    return fmt::format(" above {}, at most {}", amount(field.min), amount(field.max));
  if (low && high) return fmt::format(" from {} to {}", amount(field.min), amount(field.max));
  if (low) return fmt::format(" {} {}", field.above_min ? "above" : "from", amount(field.min));
  return "";
}

}  // namespace

const char* name_of(Unit unit) {
  switch (unit) {
    case Unit::none: return "";
    case Unit::tokens: return "tokens";
    case Unit::sequences: return "sequences";
    case Unit::steps: return "steps";
    case Unit::seconds: return "seconds";
    case Unit::mebibytes: return "MiB";
  }
  return "?";
}

const char* path_rule(Names names) {
  switch (names) {
    case Names::no_file: return "";
    case Names::file: return "relative to the folder of the file it is written in; with --set, to the current folder";
    case Names::file_or_bytes:
      return "a file is relative to the folder of the file it is written in; with --set, to the current folder";
    case Names::program:
    case Names::command:
      return "a path with `/` is relative to the folder of the file it is written in; a bare name is found on PATH";
  }
  return "?";
}

std::string json_of(const Setting& setting) {
  const auto strict = [](const auto& value) {
    return dump_json(OrderedJson(value));
  };
  if (const TextMap* map = std::get_if<TextMap>(&setting)) {
    OrderedJson object = OrderedJson::object();
    for (const auto& [key, value] : *map) object[key] = value;
    return strict(object);
  }
  return std::visit([&](const auto& value) { return strict(value); }, setting);
}

std::string Field::section() const {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string Field::leaf() const {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

const std::vector<Field>& fields() { return tables().fields; }
std::vector<const Field*> listed_fields() {
  std::vector<const Field*> list;
  for (const Field& field : fields())
    if (field.listed) list.push_back(&field);
  return list;
}
const std::vector<Section>& sections() { return tables().sections; }

std::string table_path(const std::string& concrete) {
  for (const std::string list : {"data.train", "data.val"}) {
    if (concrete.rfind(list + ".", 0) != 0) continue;
    size_t rest = list.size() + 1;
    while (rest < concrete.size() && concrete[rest] >= '0' && concrete[rest] <= '9') ++rest;
    if (rest == concrete.size()) return list + "[]";
    if (concrete[rest] == '.') ++rest;
    return list + "[]." + concrete.substr(rest);
  }
  return concrete;
}

const Field* find_field(const std::string& path) {
  const auto found = tables().field_index.find(table_path(path));
  return found == tables().field_index.end() ? nullptr : &tables().fields[found->second];
}

const Section* find_section(const std::string& path) {
  const auto found = tables().section_index.find(path);
  return found == tables().section_index.end() ? nullptr : &tables().sections[found->second];
}

const std::vector<Alternatives>& alternatives() {
  static const std::vector<Alternatives> all = {
      {"batch.global_tokens", "batch.global_sequences", false},
      {"schedule.total_tokens", "schedule.total_steps", true},
      {"schedule.warmup_tokens", "schedule.warmup_steps", false},
      {"schedule.decay_tokens", "schedule.decay_steps", false},
  };
  return all;
}

std::string describe_type(const Field& field) {
  const std::string unit = field.unit == Unit::none ? "" : fmt::format(" of {}", name_of(field.unit));
  const std::string or_auto = field.accepts_auto ? ", or \"auto\"" : "";
  switch (field.type) {
    case Type::boolean: return "true or false";
    case Type::integer: return fmt::format("a whole number{}{}{}", unit, range_of(field), or_auto);
    case Type::number: return fmt::format("a number{}{}{}", unit, range_of(field), or_auto);
    case Type::text: return field.identifier ? "text of letters, digits, `.`, `_` and `-`" : "text";
    case Type::choice:
      if (field.accepts_count)
        return fmt::format("{}, or a whole number{}", fmt::join(field.choices, ", "), range_of(field));
      return fmt::format("one of {}", fmt::join(field.choices, ", "));
    case Type::integer_list: return fmt::format("a list of whole numbers{}{}", range_of(field), or_auto);
    case Type::text_list:
      if (field.choices.empty()) return "a list of strings";
      return fmt::format("a list of any of {}", fmt::join(field.choices, ", "));
    case Type::text_map: return "an object of strings";
    case Type::source_list:
      return "a list of sources: objects with `path`, `format`, `dtype`, `weight`, `name`";
  }
  return "?";
}

std::vector<std::pair<std::string, std::string>> model_values(const ModelSpec& model) {
  const JobSpec job{.model = model}, preset{.model = with_family_defaults(model)};
  std::vector<std::pair<std::string, std::string>> values;
  for (const Field& field : fields()) {
    if (field.part != SpecPart::model || !field.get || !field.in_resolved) continue;
    if (field.path == "model.preset" || field.path == "model.init.from") continue;
    if (field.where_learned == WhereLearned::nothing && !model.is_rotary()) continue;
    const Setting value = field.get(job);
    if (field.by_family && value == field.get(preset)) continue;
    if ((field.section() == "model.init" || field.left_out_as_default) && value == field.fallback) continue;
    values.emplace_back(field.path, json_of(value));
  }
  return values;
}

}  // namespace trainctl::spec
