// Change: the class of a field by the effect of a new value on an existing run. The field table gives each
// field its class; runtime/spec/changes.h compares whole specs.
#pragma once

namespace trainctl {

/// The effect of a new value of a field on an existing run.
enum class Change {
  free,      ///< a resume may make it; the training state keeps the same bits
  numerics,  ///< a resume may make it; later numbers differ, and the change is recorded and reported
  branch,    ///< only a new run from a checkpoint may make it (`launch JOB --from RUN`)
  never,     ///< it changes the model's shape, so no checkpoint of the run fits
};
/// "free", "changes numerics", "needs a branch", "needs a new run".
const char* name_of(Change change);

}  // namespace trainctl
