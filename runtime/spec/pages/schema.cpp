// JSON Schema draft-07 of the spec, generated from the field table.
#include <fmt/format.h>

#include <cmath>

#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/parse.h"
#include "runtime/spec/presets.h"

namespace trainctl {

namespace {

using spec::Field;
using spec::json_of;
using spec::Type;
using spec::Unit;

const char* pattern_of(Unit unit) {
  constexpr const char* kCount = "^-?[0-9.]+([eE][-+]?[0-9]+)? *(k|K|M|B|G|T|Ki|Mi|Gi)?$";
  switch (unit) {
    case Unit::none: return "";
    case Unit::tokens:
    case Unit::sequences:
    case Unit::steps: return kCount;
    case Unit::seconds: return "^-?[0-9.]+([eE][-+]?[0-9]+)? *(ms|s|m|min|h|d)?$";
    case Unit::mebibytes: return "^-?[0-9.]+([eE][-+]?[0-9]+)? *(KiB|MiB|GiB|kB|MB|GB)?$";
  }
  return "";
}

OrderedJson exact(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

OrderedJson quantity_schema(const Field& field) {
  OrderedJson number = {{"type", field.type == Type::integer ? "integer" : "number"}};
  if (std::isfinite(field.min)) number[field.above_min ? "exclusiveMinimum" : "minimum"] = exact(field.min);
  if (std::isfinite(field.max)) number["maximum"] = exact(field.max);
  OrderedJson forms = OrderedJson::array({number});
  if (field.unit != Unit::none) forms.push_back({{"type", "string"}, {"pattern", pattern_of(field.unit)}});
  if (field.accepts_auto) forms.push_back({{"const", "auto"}});
  forms.push_back({{"type", "null"}});
  return {{"anyOf", forms}};
}

OrderedJson whole_number_schema(const Field& field) {
  OrderedJson number = {{"type", "integer"}};
  if (std::isfinite(field.min)) number["minimum"] = exact(field.min);
  if (std::isfinite(field.max)) number["maximum"] = exact(field.max);
  return number;
}

OrderedJson object_schema(const std::string& section);

OrderedJson type_schema(const Field& field) {
  OrderedJson words = OrderedJson::array();
  for (const std::string& word : field.choices) words.push_back(word);
  switch (field.type) {
    case Type::boolean: return {{"type", {"boolean", "null"}}};
    case Type::integer:
    case Type::number: return quantity_schema(field);
    case Type::text: {
      OrderedJson schema = {{"type", {"string", "null"}}};
      if (field.identifier) schema["pattern"] = "^([A-Za-z0-9_][A-Za-z0-9._-]*)?$";
      if (field.path == "model.preset") {
        schema["enum"] = preset_names();
        schema["enum"].push_back("");
        schema["enum"].push_back(nullptr);
      }
      return schema;
    }
    case Type::choice:
      for (const auto& [spelling, meaning] : field.aliases) words.push_back(spelling);
      words.push_back(nullptr);
      if (field.accepts_count)
        return {{"anyOf", OrderedJson::array({OrderedJson{{"enum", words}}, whole_number_schema(field)})}};
      return {{"enum", words}};
    case Type::text_list: {
      OrderedJson items = {{"type", "string"}};
      if (!field.choices.empty()) items = {{"enum", words}};
      return {{"type", {"array", "null"}}, {"items", items}};
    }
    case Type::integer_list: {
      OrderedJson forms = OrderedJson::array(
          {OrderedJson{{"type", {"array", "null"}}, {"items", whole_number_schema(field)}}});
      if (field.accepts_auto) forms.push_back({{"const", "auto"}});
      return {{"anyOf", forms}};
    }
    case Type::text_map:
      return {{"type", {"object", "null"}}, {"additionalProperties", {{"type", {"string", "null"}}}}};
    case Type::source_list: {
      OrderedJson schema = {{"type", {"array", "null"}}, {"items", object_schema(field.path + "[]")}};
      if (field.required) schema["minItems"] = 1;
      return schema;
    }
  }
  return {};
}

OrderedJson field_schema(const Field& field) {
  OrderedJson schema = type_schema(field);
  std::string plain = field.text;
  if (field.names != spec::Names::no_file) plain += fmt::format(" ({})", path_rule(field.names));
  std::erase(plain, '`');
  schema["description"] = plain;
  schema["markdownDescription"] =
      fmt::format("{}\n\n`{}`: {}", field.text, field.path, describe_type(field));
  if (field.fallback) schema["default"] = parse_ordered_json(json_of(*field.fallback));
  if (!field.example.empty()) schema["examples"] = OrderedJson::array({parse_ordered_json(field.example)});
  if (field.unit != Unit::none) schema["x-unit"] = name_of(field.unit);
  schema["x-since"] = "0.1.0";
  return schema;
}

OrderedJson object_schema(const std::string& section) {
  OrderedJson properties = OrderedJson::object();
  OrderedJson required = OrderedJson::array();
  for (const Field& field : spec::fields())
    if (field.section() == section) {
      properties[field.leaf()] = field_schema(field);
      if (field.required && section.find("[]") != std::string::npos) required.push_back(field.leaf());
    }
  for (const spec::Section& child : spec::sections()) {
    const size_t dot = child.path.rfind('.');
    if ((dot == std::string::npos ? "" : child.path.substr(0, dot)) != section) continue;
    OrderedJson inner = object_schema(child.path);
    inner["description"] = child.text;
    inner["markdownDescription"] = child.text;
    if (!child.word_field.empty()) {
      inner["type"].push_back("string");
      inner["pattern"] = fmt::format(
          "^({})$", fmt::join(spec::find_field(child.path + "." + child.word_field)->choices, "|"));
    }
    properties[dot == std::string::npos ? child.path : child.path.substr(dot + 1)] = std::move(inner);
  }
  const bool is_entry = section.find("[]") != std::string::npos;
  OrderedJson schema = {
      {"type", section.empty() || is_entry ? OrderedJson("object") : OrderedJson({"object", "null"})},
      {"properties", properties},
      {"patternProperties", {{"^x-", OrderedJson::object()}}},
      {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = required;
  return schema;
}

}  // namespace

std::string job_schema() {
  OrderedJson schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                 {"title", "trainctl job spec"},
                 {"description", "A training job of trainctl. Comments (//) are allowed in the file."}};
  schema.update(object_schema(""));
  return dump_json(schema, 2) + "\n";
}

}  // namespace trainctl
