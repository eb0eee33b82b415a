// What the plan of a job says of its memory and of its pipeline, for the report. Pure; takes as long as
// `trainctl plan` does.
#pragma once
#include "runtime/base/json.h"
#include "runtime/observe/report/rank_grid.h"
#include "runtime/spec/parse.h"

namespace trainctl::report {

/// {"parameters", "checkpoint_bytes", "bubble", "memory": [{"stage", "total", "terms": [[name, bytes],
/// ...]}], "pipeline": {...}}; without "pipeline" if the job has one stage. Throws Error where the job
/// cannot be planned.
nlohmann::ordered_json plan_view(const ParsedJob& job);

/// Adds "measured" and "measured_rank" to each stage: the largest of its ranks in the newest step that has
/// every rank's numbers.
void add_measured_memory(nlohmann::ordered_json& view, const RankGrid& grid);

}  // namespace trainctl::report
