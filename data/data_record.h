// What a run records of its data when it begins (data.json), and whether they are the same later.
#pragma once
#include <string>

#include "data/dataset.h"
#include "runtime/base/problem.h"

namespace trainctl::data {

/// {"train": [...], "val": [...]} with Dataset::fingerprints_json, and the same below "ends" with ends_json.
///   val                 null: there is none
///   with_fingerprints   false: only the ends, which cost a rank little also where there are many files
std::string data_record(const Dataset& train, const Dataset* val, bool with_fingerprints = true);

/// The first data source that is not the one that the run began with; none if there is none. Of each record
/// counts what both have. Sources to train on must be the same, one by one; of those for validation, to which
/// others may be added, each that the run began with.
Problem changed_data(const std::string& run_record, const std::string& now_record);

}  // namespace trainctl::data
