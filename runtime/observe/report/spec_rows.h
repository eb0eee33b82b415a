// The spec of a run as rows with the origin of each value, and the differences between runs. Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace trainctl::report {

struct SpecRow {
  std::string path;    ///< "data.train.0.path"
  std::string value;   ///< JSON text
  std::string origin;  ///< "job.json:41", "--set", "preset llama-tiny", "default", ...; "": not recorded
};

/// The rows of a resolved spec in its order. `origins`: path -> origin. Values of environment variables
/// (launcher.env) are hidden: a report is made to be passed on.
std::vector<SpecRow> spec_rows(const nlohmann::ordered_json& spec, const nlohmann::ordered_json& origins);

/// default, file, set, preset, auto, environment or "": the kind of an origin.
const char* kind_of_origin(const std::string& origin);

/// [["path", "value", "origin", "kind"], ...]
nlohmann::ordered_json spec_json(const std::vector<SpecRow>& rows);

/// [["path", "value of run 0", "value of run 1", ...], ...] of the fields that differ; "": a run has none.
/// Names and places of a run are not compared.
nlohmann::ordered_json differences_json(const std::vector<std::vector<SpecRow>>& runs);

}  // namespace trainctl::report
