#include "test/support/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "runtime/base/json.h"
#include "test/support/child.h"

namespace trainctl::test {
namespace {

class Check {
 public:
  Check(const Json& root, std::vector<std::string>& errors) : root_(root), errors_(errors) {}

  void check(const Json& schema, const Json& value, const std::string& place) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) error(place, "is not allowed");
      return;
    }
    check_keywords(schema, place);
    if (schema.contains("$ref")) return check(definition(schema["$ref"]), value, place);
    if (schema.contains("type") && !has_type(schema["type"], value))
      return error(place, fmt::format("{} is not of type {}", value.dump(), schema["type"].dump()));
    if (schema.contains("const") && value != schema["const"])
      error(place, fmt::format("{} is not {}", value.dump(), schema["const"].dump()));
    if (schema.contains("enum") && std::count(schema["enum"].begin(), schema["enum"].end(), value) == 0)
      error(place, fmt::format("{} is none of {}", value.dump(), schema["enum"].dump()));
    if (schema.contains("minimum") && value.is_number() && value < schema["minimum"])
      error(place, fmt::format("{} is below {}", value.dump(), schema["minimum"].dump()));
    if (schema.contains("anyOf")) check_any(schema["anyOf"], value, place);
    if (value.is_object()) check_object(schema, value, place);
    if (value.is_array()) check_array(schema, value, place);
  }

 private:
  void error(const std::string& place, const std::string& what) {
    errors_.push_back(fmt::format("{}: {}", place.empty() ? "/" : place, what.substr(0, 300)));
  }

  void check_keywords(const Json& schema, const std::string& place) {
    static const std::set<std::string> known = {
        "$schema",     "$id",         "$ref",     "title",
        "description", "definitions", "type",     "const",
        "enum",        "anyOf",       "minimum",  "items",
        "minItems",    "properties",  "required", "additionalProperties"};
    for (const auto& [key, ignored] : schema.items())
      if (!known.contains(key))
        error(place, fmt::format("the schema's `{}` is not known to this check", key));
  }

  const Json& definition(const std::string& reference) const {
    const std::string prefix = "#/definitions/";
    if (reference == "#") return root_;
    if (!reference.starts_with(prefix)) throw std::runtime_error("no such reference: " + reference);
    return root_.at("definitions").at(reference.substr(prefix.size()));
  }

  static bool has_type(const Json& type, const Json& value) {
    if (type.is_array())
      return std::any_of(type.begin(), type.end(), [&](const Json& one) { return has_type(one, value); });
    const bool whole = value.is_number_integer() ||
                       (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
    return type == "object"    ? value.is_object()
           : type == "array"   ? value.is_array()
           : type == "string"  ? value.is_string()
           : type == "number"  ? value.is_number()
           : type == "integer" ? whole
           : type == "boolean" ? value.is_boolean()
           : type == "null"    ? value.is_null()
                               : false;
  }

  void check_any(const Json& schemas, const Json& value, const std::string& place) {
    std::vector<std::string> all;
    for (const Json& schema : schemas) {
      std::vector<std::string> errors;
      Check(root_, errors).check(schema, value, place);
      if (errors.empty()) return;
      all.insert(all.end(), errors.begin(), errors.end());
    }
    error(place, "fits none of the alternatives");
    errors_.insert(errors_.end(), all.begin(), all.end());
  }

  void check_object(const Json& schema, const Json& value, const std::string& place) {
    static const Json none = Json::object();
    const Json& properties = schema.contains("properties") ? schema["properties"] : none;
    if (schema.contains("required"))
      for (const Json& name : schema["required"])
        if (!value.contains(name.get<std::string>())) error(place, fmt::format("{} is missing", name.dump()));
    for (const auto& [name, item] : value.items()) {
      const std::string inner = place + "/" + name;
      if (properties.contains(name))
        check(properties[name], item, inner);
      else if (schema.contains("additionalProperties"))
        check(schema["additionalProperties"], item, inner);
      else if (schema.contains("properties"))
        error(inner, "the schema does not name it");
    }
  }

  void check_array(const Json& schema, const Json& value, const std::string& place) {
    if (schema.contains("minItems") && value.size() < schema["minItems"].get<size_t>())
      error(place, fmt::format("has {} items only", value.size()));
    if (!schema.contains("items")) return;
    for (size_t i = 0; i < value.size(); ++i) {
      const Json& items = schema["items"];
      if (!items.is_array())
        check(items, value[i], fmt::format("{}/{}", place, i));
      else if (i < items.size())
        check(items[i], value[i], fmt::format("{}/{}", place, i));
    }
  }

  const Json& root_;
  std::vector<std::string>& errors_;
};

std::string folder() { return std::string(TRAINCTL_SOURCE_DIR) + "/runtime/observe/schemas/"; }
constexpr const char* kEnding = ".schema.json";

}  // namespace

std::vector<std::string> schema_errors(const Json& schema, const Json& value) {
  std::vector<std::string> errors;
  Check(schema, errors).check(schema, value, "");
  return errors;
}

Json result_schema(const std::string& kind) {
  const std::string path = folder() + kind + kEnding;
  return std::filesystem::exists(path) ? Json::parse(read_file(path)) : Json();
}

std::vector<std::string> result_kinds() {
  std::vector<std::string> kinds;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kEnding)) kinds.push_back(name.substr(0, name.size() - std::string(kEnding).size()));
  }
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

std::vector<std::string> kinds_of_runs() {
  return {"alert",
          "against",
          "checkpoint",
          "checkpoint-copy",
          "checkpoint-repair",
          "compare",
          "detached",
          "diagnose",
          "eval",
          "data-spikes",
          "event-line",
          "experts-line",
          "export",
          "import",
          "links",
          "log",
          "measured",
          "metrics-line",
          "ranks-line",
          "removed",
          "report",
          "sample",
          "serve",
          "status",
          "stop",
          "submitted",
          "trace",
          "verify"};
}

std::string result_error(const std::string& text, const std::string& kind) {
  const Json value = Json::try_parse(text);
  if (value.is_discarded()) return "this is no JSON: " + text.substr(0, 300);
  if (!value.is_object() || value.value("v", 0) != 1 || value.value("kind", "") != kind)
    return fmt::format("this is no result of version 1 and kind {}: {}", kind, text.substr(0, 300));
  const Json schema = result_schema(kind);
  if (schema.is_null()) return fmt::format("there is no schema of {}", kind);
  std::string all;
  for (const std::string& error : schema_errors(schema, value)) all += error + "\n";
  return all;
}

}  // namespace trainctl::test
