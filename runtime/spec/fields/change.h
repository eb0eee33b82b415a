// Change: the class of a field by the effect of a new value on an existing run. The field table gives each
// field its class; runtime/spec/changes.h compares whole specs.
#pragma once
#include "runtime/base/words.h"

namespace trainctl {

/// The section of the spec that holds a field, or the section above that.
enum class SpecPart {
  top,
  model,
  data,
  batch,
  parallelism,
  precision,
  memory,
  optimizer,
  schedule,
  eval,
  checkpoint,
  fault_tolerance,
  observability,
  launcher
};
template <>
struct Words<SpecPart> {
  static constexpr std::string_view list[] = {
      "",          "model",    "data", "batch",      "parallelism",     "precision",     "memory",
      "optimizer", "schedule", "eval", "checkpoint", "fault_tolerance", "observability", "launcher"};
};

/// The effect of a new value of a field on an existing run.
enum class Change {
  free,      ///< a resume may make it; the training state keeps the same bits
  numerics,  ///< a resume may make it; later numbers differ, and the change is recorded and reported
  branch,    ///< only a new run from a checkpoint may make it (`launch JOB --from RUN`)
  never,     ///< it changes the model's shape, so no checkpoint of the run fits
};
/// What says whether the bits of a resumed run differ after a change of class numerics.
enum class BitsBy {
  change,     ///< the change: they do
  sum_order,  ///< the order of sums, which some values leave as it is
  device      ///< what computes (Backend::numerics)
};

/// "free", "changes numerics", "needs a branch", "needs a new run".
const char* name_of(Change change);

}  // namespace trainctl
