// Computes when a run with a time limit must begin its last save. Pure; safe from any thread.
#pragma once
#include <optional>
#include <span>

namespace trainctl {

struct EndOfTime {
  double deadline_unix_s = 0;       ///< when the scheduler sends SIGTERM; it sends SIGKILL some seconds later
  std::span<const double> saves_s;  ///< durations of this run's saves, any order; empty: no save yet
  /// Longest duration of a step; a stop waits for the end of the current step
  double step_s = 0;
  double margin_s = 30;             ///< for the end of the ranks and for times that are not measured
  double first_save_s = 120;        ///< assumed duration of a save if there was none yet
};

/// The expected duration of the next save: 1.5 times the longest so far, because storage gets slower when
/// many jobs end at the same time.
double expected_save_s(const EndOfTime& end);

/// When to stop the ranks: the deadline minus one step, the expected save and the margin. The result may be
/// in the past; then stop at once, because the scheduler may be late.
double begin_of_last_save_unix_s(const EndOfTime& end);

/// The S for sbatch's --signal=B:USR1@S, for sites where squeue cannot be asked: twice the time from
/// begin_of_last_save_unix_s to the deadline, at least 60 s (Slurm sends the signal up to a minute late or
/// early) and at most 65535 s.
int signal_seconds(const EndOfTime& end);

}  // namespace trainctl
