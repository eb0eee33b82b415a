// The save at the end of a run. It is repeated if it fails, because otherwise all work since the previous
// save would be lost.
#pragma once
#include <functional>

#include "parallel/communicator.h"
#include "runtime/base/file_system.h"
#include "runtime/spec/fields/job.h"
#include "runtime/train/control/control.h"

namespace trainctl {

/// The wait before the new attempt number `attempt` (from 1): 1, 2, 4, ... seconds, at most `longest_s`.
double save_retry_wait_s(int attempt, double longest_s);

struct LastSave {
  int64_t step = 0;
  /// A stop was requested before, and SIGKILL may follow soon. Then attempts end after kStoppedRetryS.
  bool stopped = false;
  double longest_wait_s = 30;  ///< must be less than every deadline that applies meanwhile
};
/// The usual longest_wait_s.
double longest_save_wait_s(const FaultSpec& limits);
/// Schedulers send SIGKILL about half a minute after SIGTERM.
inline constexpr double kStoppedRetryS = 15;

/// How long the end of a run waits for saves that are still being written. A stop has a limit: the last save,
/// which is worth more, gets half of what is left of it.
///   stop_left_s      Control::stop_left_s: infinite if the run ends by itself
///   exit_timeout_s   checkpoint.exit_timeout_seconds
///   saves            the last save follows
double wait_for_writes_s(double stop_left_s, double exit_timeout_s, bool saves);

/// Calls `save` until it returns true (the same on every rank) or a stop is requested. Returns false if it
/// gave up. Collective over `world`: the ranks decide together. Writes the event "save_retry" before each new
/// attempt.
bool save_at_the_end(const LastSave& last, const std::function<bool()>& save, parallel::Communicator& world, Control& control,
                     Clock& clock);

}  // namespace trainctl
