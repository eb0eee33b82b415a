// What the plan of a job says of its memory and of its pipeline, for the report. Pure; takes as long as
// `trainctl plan` does.
#pragma once

#include "runtime/base/json.h"
#include "runtime/observe/report/rank_grid.h"
#include "runtime/plan/device_model.h"
#include "runtime/spec/parse.h"

namespace trainctl::report {

/// {"parameters", "checkpoint_bytes", "bubble", "memory": [{"stage", "total", "terms": [[name, bytes],
/// ...]}], "pipeline": {...}}; without "pipeline" if the job has one stage. Throws Error where the job
/// cannot be planned.
OrderedJson plan_view(const ParsedJob& job);

/// A step of the pipeline of data-parallel rank 0 as spans of each stage; the step takes 1. Of many
/// micro-batches some are in it:
///
///   {"schedule", "virtual_stages", "micro_batches", "drawn_micro_batches",
///    "stages": [[["F" | "B" | "W", micro-batch, virtual stage, begin, end], ...], ...]}
OrderedJson pipeline_view(const JobSpec& job, const DeviceModel& device);

/// Adds "measured" and "measured_rank" to each stage: the largest of its ranks in the newest step that has
/// every rank's numbers.
void add_measured_memory(OrderedJson& view, const RankGrid& grid);

}  // namespace trainctl::report
