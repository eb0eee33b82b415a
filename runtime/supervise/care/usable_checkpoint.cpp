#include "runtime/supervise/care/usable_checkpoint.h"

#include <fmt/format.h>

#include "ckpt/folders.h"
#include "runtime/base/error.h"
#include "runtime/supervise/care/mend.h"
#include "runtime/supervise/history/suspects.h"

namespace trainctl {
namespace {

/// Null if the checkpoint of `step` is not whole after that.
std::unique_ptr<ckpt::Checkpoint> mended(const StoreAccess& access, const UsableRequest& request,
                                         int64_t step, Usable& result) {
  const auto event = mend_checkpoint(access, {.place = request.store,
                                              .directory = request.directory,
                                              .run_id = request.run_id,
                                              .step = step,
                                              .say = request.say,
                                              .is_given_up = request.is_given_up});
  if (!event) return nullptr;
  result.events.emplace_back(EventKind::checkpoint_repaired, *event);
  try {
    return ckpt::Checkpoint::open(access.fs, ckpt::step_directory(request.directory, step));
  } catch (const Error& error) {
    request.say(fmt::format(" ! {}", error.what()));
    return nullptr;
  }
}

}  // namespace

Usable find_usable(const StoreAccess& access, const UsableRequest& request) {
  Usable result;
  if (request.damaged) {
    result.checkpoint = mended(access, request, *request.damaged, result);
    if (result.checkpoint) return result;
  }
  result.checkpoint = open_latest_trusted(
      access.fs, request.directory, request.at_most, suspect_checkpoints(request.events),
      [&](const std::string& path, const std::string& reason) {
        request.say(fmt::format(" ! {} is skipped: {}", path, reason));
        if (const auto step = ckpt::step_of_name(ckpt::base_name(path))) result.skipped.push_back(*step);
      },
      [&](const Suspect& suspect, bool is_used) {
        request.say(is_used
                        ? fmt::format(" ! {}; it is used all the same: there is no older one", suspect.text())
                        : fmt::format(" ! {}; an older one is used; `resume --step {}` uses it",
                                      suspect.text(), suspect.step));
        result.events.emplace_back(EventKind::checkpoint_suspect, suspect.event_json());
      });
  for (const int64_t step : result.skipped)
    if (auto checkpoint = mended(access, request, step, result)) {
      result.checkpoint = std::move(checkpoint);
      break;
    }
  return result;
}

}  // namespace trainctl
