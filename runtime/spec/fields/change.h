// How much another value of a field changes a run that exists. The field table gives each field its class;
// runtime/spec/changes.h compares whole specs.
#pragma once

namespace trainctl {

/// What a change of a field means to a run that exists.
enum class Change {
  free,      ///< a resume may make it; no bit of the training state differs for it
  numerics,  ///< a resume may make it; from there on the numbers are others than without it, which is recorded and said
  branch,    ///< only a new run that begins from a checkpoint may make it (`launch JOB --from RUN`)
  never,     ///< the shape of the model: no checkpoint of the run fits any more
};
/// "free", "changes numerics", "needs a branch", "needs a new run".
const char* name_of(Change change);

}  // namespace trainctl
