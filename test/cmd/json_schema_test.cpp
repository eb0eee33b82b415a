// Goal: the check of results against their schemas refuses what a schema refuses, or every other test of
// results would pass with anything; each schema is one that the check knows whole.
// Method: values that break one rule each; a copy of a real schema.
#include "runtime/base/json.h"
#include "test/support/json_schema.h"

#include <catch2/catch.hpp>

using trainctl::Json;
using trainctl::test::result_error;
using trainctl::test::result_kinds;
using trainctl::test::result_schema;
using trainctl::test::schema_errors;

namespace {

const Json kSchema = Json::parse(R"({
  "type": "object", "required": ["n"],
  "properties": {
    "n": {"type": "integer", "minimum": 0},
    "list": {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/word"}},
    "pair": {"items": [{"type": "string"}, {"type": "number"}]},
    "map": {"type": "object", "additionalProperties": {"type": "number"}},
    "open": {"type": "object"},
    "either": {"anyOf": [{"$ref": "#/definitions/word"}, {"type": "null"}]},
    "one": {"const": 1}},
  "definitions": {"word": {"enum": ["a", "b"]}}})");

}  // namespace

TEST_CASE("a value is held to each rule of its schema", "[cmd]") {
  for (const char* good :
       {R"({"n": 0})", R"({"n": 2.0, "list": ["a", "b"]})", R"({"n": 1, "map": {"x": 1.5}})",
        R"({"n": 1, "open": {"x": []}})", R"({"n": 1, "either": null, "one": 1})",
        R"({"n": 1, "either": "b", "pair": ["x", 2, true]})"}) {
    CAPTURE(good);
    CHECK(schema_errors(kSchema, Json::parse(good)).empty());
  }
  for (const char* bad :
       {R"([])", R"({})", R"({"n": 1.5})", R"({"n": -1})", R"({"n": "1"})", R"({"n": 1, "list": []})",
        R"({"n": 1, "list": ["c"]})", R"({"n": 1, "pair": ["x", "y"]})", R"({"n": 1, "map": {"x": "y"}})",
        R"({"n": 1, "either": "c"})", R"({"n": 1, "one": 2})", R"({"n": 1, "more": 1})"}) {
    CAPTURE(bad);
    CHECK(schema_errors(kSchema, Json::parse(bad)).size() >= 1);
  }
  CHECK(schema_errors(Json{{"type", "object"}, {"oneOf", Json::array()}}, Json::object()).size() == 1);
  CHECK(schema_errors(Json{{"type", "integer"}}, Json(nullptr)).front() ==
        "/: null is not of type \"integer\"");
}

TEST_CASE("a result is of version 1, of its kind, and JSON", "[cmd]") {
  CHECK(result_error(R"({"v": 1, "kind": "text", "text": "x"})", "text") == "");
  for (const char* bad :
       {"", "x", "[]", R"({"kind": "text", "text": "x"})", R"({"v": 2, "kind": "text", "text": "x"})",
        R"({"v": 1, "kind": "error", "text": "x"})", R"({"v": 1, "kind": "text"})",
        R"({"v": 1, "kind": "text", "text": "x"} {})"}) {
    CAPTURE(bad);
    CHECK(result_error(bad, "text") != "");
  }
  CHECK(result_error(R"({"v": 1, "kind": "nothing"})", "nothing") == "there is no schema of nothing");
  REQUIRE(result_kinds().size() > 30);
  for (const std::string& kind : result_kinds()) {
    CAPTURE(kind);
    CHECK(result_schema(kind)["$schema"] == "http://json-schema.org/draft-07/schema#");
    CHECK(result_schema(kind)["properties"]["v"]["const"] == 1);
  }
}
