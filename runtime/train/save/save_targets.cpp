#include "runtime/train/save/save_targets.h"

namespace trainctl {

SaveTargets decide(const SaveTargets& due, const SavesUnderWay& under_way, const LeavingSave& leaving) {
  if (!under_way.writing) return due;
  if (due.directory && !leaving.to_directory) return {.memory = due.memory, .directory = true};
  // The only slot is being written from.
  if (leaving.slots == 1 && under_way.holds) return {};
  // Of a copy that is not whole on every rank nothing could go on.
  return {.memory = due.any() && (!copies_over_newest(under_way, leaving) || !under_way.lost)};
}

bool copies_over_newest(const SavesUnderWay& under_way, const LeavingSave& leaving) {
  return leaving.slots == 2 && under_way.writing && under_way.holds && !leaving.is_newest;
}

}  // namespace trainctl
