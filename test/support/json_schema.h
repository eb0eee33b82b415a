// Checks JSON values against schemas of JSON Schema draft-07, of which it knows a part: type, const, enum,
// properties, required, additionalProperties, items, minItems, minimum, anyOf, and $ref into `definitions`.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace trainctl::test {

/// What is wrong with `value`, a sentence each with the place: "/runs/0/step: ...". Wrong are also a keyword
/// of the schema that is not known, and a member that the schema does not name: a schema lets a program read
/// later versions with more members; what this version prints is in it.
std::vector<std::string> schema_errors(const Json& schema, const Json& value);

/// The schema of results of this kind (runtime/observe/schemas); null if there is none.
Json result_schema(const std::string& kind);
/// The kinds that have a schema: of results, and of lines of the files of a run ("metrics-line").
std::vector<std::string> result_kinds();
/// Those of them that only a run has, or a measurement.
std::vector<std::string> kinds_of_runs();

/// What is wrong with a text that --json printed: it is no JSON, has no schema, or its schema refuses it. ""
/// if nothing is. `kind`: what it should be.
std::string result_error(const std::string& text, const std::string& kind);

}  // namespace trainctl::test
