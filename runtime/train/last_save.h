// The save at the end of a run: it holds everything since the one before, so it is not given up at the first failure.
#pragma once
#include <functional>

#include "parallel/communicator.h"
#include "runtime/base/file_system.h"
#include "runtime/train/control.h"

namespace trainctl {

/// How long to wait before new attempt number `attempt` (from 1): 1, 2, 4, ... seconds, never more than `longest_s`.
double save_retry_wait_s(int attempt, double longest_s);

struct LastSave {
  int64_t step = 0;
  /// A stop was asked for before, and a kill may follow soon, so that attempts end after kStoppedRetryS.
  bool stopped = false;
  double longest_wait_s = 30;   ///< less than any deadline that runs meanwhile
};
/// A scheduler gives a job about half a minute between asking and killing.
inline constexpr double kStoppedRetryS = 15;

/// Calls `save` (true: saved; the same on every rank) until it succeeds or the run is asked to stop. Called by every rank of
/// `world`, which decides together; each new attempt is announced as the event "save_retry". False: given up.
bool save_at_the_end(const LastSave& last, const std::function<bool()>& save, parallel::Communicator& world, Control& control,
                     Clock& clock);

}  // namespace trainctl
