// Goal: what is generated from the field table is complete and true: pages, starters, and a JSON Schema
// that accepts valid specs and rejects misspelt, mistyped and out-of-range ones. Method: every field,
// section, code and preset; the schema is evaluated by a small draft-07 checker below, which knows exactly
// the keywords that the schema uses and refuses any other.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <regex>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/spec/pages/codes.h"
#include "runtime/spec/fields/fields.h"
#include "runtime/spec/pages/pages.h"
#include "runtime/spec/parse.h"
#include "runtime/spec/presets.h"
#include "runtime/spec/suggest.h"

using namespace trainctl;

namespace {

/// A job as a JSON library reads it: without what follows `//` outside of a string.
std::string without_comments(const std::string& job) {
  std::string text;
  bool in_string = false;
  for (size_t i = 0; i < job.size(); ++i) {
    if (job[i] == '"' && (i == 0 || job[i - 1] != '\\')) in_string = !in_string;
    if (!in_string && job.compare(i, 2, "//") == 0) i = std::min(job.find('\n', i), job.size() - 1);
    text += job[i];
  }
  return text;
}

bool is_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
  if (type == "number") return value.is_number();
  FAIL("unknown type " << type);
  return false;
}

bool accepts(const Json& schema, const Json& value);

bool accepts_members(const Json& schema, const Json& value) {
  for (const auto& name : schema.value("required", Json::array()))
    if (!value.contains(name.get<std::string>())) return false;
  for (const auto& [key, member] : value.items()) {
    const Json properties = schema.value("properties", Json::object());
    if (properties.contains(key)) {
      if (!accepts(properties[key], member)) return false;
    } else if (schema.contains("patternProperties") && key.rfind("x-", 0) == 0) {
      continue;
    } else if (schema.contains("additionalProperties")) {
      const Json& rest = schema["additionalProperties"];
      if (rest.is_boolean() ? !rest.get<bool>() : !accepts(rest, member)) return false;
    }
  }
  return true;
}

bool accepts(const Json& schema, const Json& value) {
  for (const auto& [keyword, rule] : schema.items()) {
    if (keyword == "type") {
      bool any = false;
      for (const auto& type : rule.is_array() ? rule : Json::array({rule}))
        any = any || is_type(value, type);
      if (!any) return false;
    } else if (keyword == "enum") {
      if (std::find(rule.begin(), rule.end(), value) == rule.end()) return false;
    } else if (keyword == "const") {
      if (value != rule) return false;
    } else if (keyword == "anyOf") {
      if (std::none_of(rule.begin(), rule.end(), [&](const Json& form) { return accepts(form, value); }))
        return false;
    } else if (keyword == "minimum") {
      if (value.is_number() && value.get<double>() < rule.get<double>()) return false;
    } else if (keyword == "exclusiveMinimum") {
      if (value.is_number() && value.get<double>() <= rule.get<double>()) return false;
    } else if (keyword == "maximum") {
      if (value.is_number() && value.get<double>() > rule.get<double>()) return false;
    } else if (keyword == "pattern") {
      if (value.is_string() &&
          !std::regex_search(value.get<std::string>(), std::regex(rule.get<std::string>())))
        return false;
    } else if (keyword == "items") {
      if (value.is_array() &&
          std::any_of(value.begin(), value.end(), [&](const Json& item) { return !accepts(rule, item); }))
        return false;
    } else if (keyword == "minItems") {
      if (value.is_array() && value.size() < rule.get<size_t>()) return false;
    } else if (keyword == "properties" || keyword == "required" || keyword == "patternProperties" ||
               keyword == "additionalProperties") {
      continue;  // together, below
    } else {
      const bool annotation = keyword == "$schema" || keyword == "title" || keyword == "description" ||
                              keyword == "markdownDescription" || keyword == "default" ||
                              keyword == "examples" || keyword.rfind("x-", 0) == 0;
      if (!annotation) FAIL("keyword " << keyword);
    }
  }
  return !value.is_object() || accepts_members(schema, value);
}

Json valid_job() {
  return Json::parse(
      R"({"version": 1, "model": {"preset": "llama-tiny"}, "data": {"train": [{"path": "a.idx"}]},
    "parallelism": {"tensor": 2}, "schedule": {"total_steps": 100}})");
}

}  // namespace

TEST_CASE("every field, section, code and preset has a page", "[spec]") {
  for (const spec::Field& field : spec::fields()) {
    INFO(field.path);
    const std::string page = explain(field.path, nullptr);
    CHECK(page.find(field.path) != std::string::npos);
    CHECK(field.text.size() > 10);
    CHECK(field.text.back() == '.');
    CHECK((field.required || field.fallback || !field.fallback_text.empty() || !field.in_resolved ||
           field.type == spec::Type::source_list));
    CHECK((field.set || field.set_in_source || field.type == spec::Type::source_list ||
           !field.in_resolved || field.path == "eval.max_tokens"));
    CHECK((field.section().empty() || spec::find_section(field.section()) ||
           field.section().find("[]") != std::string::npos));
  }
  for (const spec::Section& section : spec::sections()) CHECK(!explain(section.path, nullptr).empty());
  for (const spec::CodePage& page : spec::code_pages()) {
    INFO(page.code);
    CHECK(explain(page.code, nullptr).find(page.title) != std::string::npos);
    CHECK(!page.cause.empty());
    CHECK(!page.example.empty());
    CHECK(!page.fix.empty());
  }
  for (const std::string& name : preset_names()) CHECK(!explain(name, nullptr).empty());
  CHECK(explain("data.train.weight", nullptr) == explain("data.train.0.weight", nullptr));
}

TEST_CASE("an unknown topic gets a suggestion", "[spec]") {
  const auto suggestion = [](const std::string& topic) {
    std::string text;
    CHECK(explain(topic, &text).empty());
    return text;
  };
  CHECK(suggestion("parallelism.tenosr") == "parallelism.tensor");
  CHECK(explain("lr", nullptr) == explain("schedule.lr", nullptr));   // the only field of that name
  CHECK(suggestion("learning_rate") == "schedule.lr");
  CHECK(suggestion("E312") == "E0312");
  CHECK(suggestion("qqqqqqqq").empty());
}

TEST_CASE("edit distance and prefixes", "[spec]") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("tensor", "tensro") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(closest("tensr", {"pipeline", "tensor"}) == std::vector<std::string>{"tensor"});
  CHECK(closest("tensor_parallel", {"tensor"}) == std::vector<std::string>{"tensor"});
  CHECK(closest("CUDA", {"auto", "cpu", "cuda"}) == std::vector<std::string>{"cuda"});
  CHECK(closest("e0312", {"E0312"}) == std::vector<std::string>{"E0312"});
  CHECK(closest("xyz", {"tensor"}).empty());
}

TEST_CASE("the schema accepts valid specs", "[spec]") {
  const Json schema = Json::parse(job_schema());
  CHECK(accepts(schema, valid_job()));
  FileSystem& fs = real_file_system();
  const std::string folder = std::string(TRAINCTL_SOURCE_DIR) + "/scripts/jobs/";
  for (const std::string& name : fs.list(folder)) {
    if (name.find(".json") == std::string::npos) continue;
    INFO(name);
    CHECK(accepts(schema, Json::parse(without_comments(fs.read_text(folder + name)))));
  }
  for (const std::string& name : preset_names()) {
    INFO(name);
    const ParsedJob parsed = parse_job({.text = starter_job(name), .file = "starter"});
    INFO(render(parsed.diagnostics, false));
    CHECK(parsed.diagnostics.empty());
    CHECK(accepts(schema, Json::parse(without_comments(starter_job(name)))));
    CHECK(accepts(schema, Json::parse(parsed.resolved_json)));
  }
}

TEST_CASE("the schema rejects what the parser rejects field by field", "[spec]") {
  const Json schema = Json::parse(job_schema());
  int rejected = 0;
  const auto both_reject = [&](const std::string& pointer, const Json& value) {
    Json job = valid_job();
    job.make_at(pointer) = value;
    INFO(pointer << " = " << value);
    CHECK(!accepts(schema, job));
    CHECK(!parse_job({.text = job.dump(), .file = "job.json"}).ok());
    ++rejected;
  };
  for (const spec::Field& field : spec::fields()) {
    if (field.path == "$schema" || field.path == "extends") continue;
    std::string pointer = "/" + field.path;
    if (const size_t list = pointer.find("[]"); list != std::string::npos) {
      if (pointer.find("/data.val") == 0) continue;  // the same fields as data.train
      pointer.replace(list, 2, ".0");
    }
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    both_reject(pointer, Json::array({Json::array()}));
    if (field.type != spec::Type::boolean) both_reject(pointer, true);
    if (std::isfinite(field.max)) both_reject(pointer, field.max * 2);
    if (std::isfinite(field.min)) both_reject(pointer, field.above_min ? field.min : field.min - 1);
    if (field.type == spec::Type::integer) both_reject(pointer, 1.5);
    if (field.type == spec::Type::choice) both_reject(pointer, "nonsense");
    both_reject(pointer + "x", 1);
  }
  CHECK(rejected > 200);
}

TEST_CASE("the schema says for each field what the table says", "[spec]") {
  const Json schema = Json::parse(job_schema());
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  for (const spec::Field& field : spec::fields()) {
    INFO(field.path);
    const Json* node = &schema;
    std::string rest = field.path + ".";
    while (!rest.empty()) {
      std::string key = rest.substr(0, rest.find('.'));
      rest = rest.substr(rest.find('.') + 1);
      const bool list = key.find("[]") != std::string::npos;
      if (list) key.resize(key.size() - 2);
      REQUIRE(node->at("properties").contains(key));
      node = &node->at("properties").at(key);
      if (list) node = &node->at("items");
    }
    CHECK(node->contains("description"));
    CHECK(node->contains("markdownDescription"));
    CHECK(node->contains("x-since"));
    CHECK(node->contains("x-unit") == (field.unit != spec::Unit::none));
    CHECK(node->contains("default") == field.fallback.has_value());
    if (node->contains("default")) CHECK(accepts(*node, (*node)["default"]));
    for (const Json& example : node->value("examples", Json::array())) CHECK(accepts(*node, example));
  }
}
