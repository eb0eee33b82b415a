#include "runtime/train/save/last_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace trainctl {
namespace {

/// How often a waiting rank looks whether it was asked to stop.
constexpr double kLookS = 0.05;

}  // namespace

double save_retry_wait_s(int attempt, double longest_s) {
  return std::min(longest_s, std::ldexp(1.0, std::clamp(attempt, 1, 20) - 1));
}

double longest_save_wait_s(const FaultSpec& limits) {
  return std::min({30.0, limits.collective_timeout_seconds / 4, limits.save_timeout_seconds / 4});
}

double wait_for_writes_s(double stop_left_s, double exit_timeout_s, bool saves) {
  if (!std::isfinite(stop_left_s)) return exit_timeout_s;
  return std::max(0.0, saves ? stop_left_s / 2 : stop_left_s);
}

bool save_at_the_end(const LastSave& last, const std::function<bool()>& save, parallel::Communicator& world, Control& control,
                     Clock& clock) {
  const double begin_s = clock.monotonic_s();
  for (int attempt = 1; !save(); ++attempt) {
    const double wait_s = save_retry_wait_s(attempt, last.longest_wait_s), until_s = clock.monotonic_s() + wait_s;
    const auto give_up = [&] {
      if (!last.stopped) return control.stop_level() != StopLevel::none;
      return until_s - begin_s > kStoppedRetryS || control.stop_left_s() < until_s - clock.monotonic_s();
    };
    if (world.rank() == 0 && !give_up())
      control.event(EventKind::save_retry,
                    fmt::format(R"({{"step":{},"attempt":{},"wait_s":{}}})", last.step, attempt + 1, wait_s));
    control.activity({.phase = RunPhase::saving, .step = last.step, .detail = "(failed, trying again)"});
    while (clock.monotonic_s() < until_s && !give_up()) clock.sleep_s(kLookS);
    // Ranks look at their own clock and hear of a stop at their own time: what one of them decided goes for all.
    int64_t votes = give_up();
    parallel::all_sum(world, {&votes, 1});
    if (votes > 0) return false;
  }
  return true;
}

}  // namespace trainctl
