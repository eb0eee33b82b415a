// When a run whose time ends must begin its last save. Pure; safe from any thread.
#pragma once
#include <optional>
#include <span>

namespace trainctl {

struct EndOfTime {
  double deadline_unix_s = 0;       ///< when the scheduler sends SIGTERM; it kills some seconds later
  std::span<const double> saves_s;  ///< how long this run's saves took, any order; empty: none was made yet
  double step_s = 0;                ///< the longest a step takes: a stop waits for the end of one
  double margin_s = 30;             ///< for the end of ranks and what nothing has measured
  double first_save_s = 120;        ///< what is assumed where no save was made yet
};

/// What to count for the next save: half as much again as the longest, since storage gets slower when many
/// jobs end at once.
double expected_save_s(const EndOfTime& end);

/// When to ask the ranks to stop: the deadline less a step, the expected save and the margin. A save that
/// would not fit any more begins at once: part of it may, and the scheduler may be late.
double begin_of_last_save_unix_s(const EndOfTime& end);

/// Seconds before the end at which sbatch is to send its signal (--signal=B:USR1@S), where squeue cannot be
/// asked: twice the time between the beginning of the last save and the end, at least a minute (Slurm is up
/// to a minute late or early).
int signal_seconds(const EndOfTime& end);

}  // namespace trainctl
