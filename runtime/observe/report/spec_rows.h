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
  std::string meaning = {};  ///< JSON text of what `auto` stands for; "": the value itself, or not known
  /// The value, and what it stands for: "auto = 4".
  std::string shown() const { return meaning.empty() ? value : value + " = " + meaning; }
};

/// The rows of a resolved spec in its order. `origins`: path -> origin. Values of environment variables
/// (launcher.env) are hidden: a report is made to be passed on.
std::vector<SpecRow> spec_rows(const OrderedJson& spec, const OrderedJson& origins);

/// default, file, set, preset, auto, environment or "": the kind of an origin.
const char* kind_of_origin(const std::string& origin);

/// [["path", "value", "origin", "kind"], ...]
OrderedJson spec_json(const std::vector<SpecRow>& rows);

/// A field that is not the same everywhere: the row of each spec; without a value where one has none.
struct SpecDifference {
  std::string path;
  std::vector<SpecRow> rows;
};
/// Names and places of a run are not compared. In the order of the first spec that has the field.
std::vector<SpecDifference> spec_differences(const std::vector<std::vector<SpecRow>>& specs);

/// [["path", "value of run 0", "value of run 1", ...], ...] of the fields that differ; "": a run has none.
OrderedJson differences_json(const std::vector<std::vector<SpecRow>>& runs);

}  // namespace trainctl::report
