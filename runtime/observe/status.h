// The texts of `trainctl status` (one screen) and `trainctl diagnose` (which ranks hold up the run). Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/run/record/run_status.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

/// none: no process holds the run's lock. alive: a supervisor holds it. stopped: that supervisor is stopped
/// (SIGSTOP, ctrl-Z).
enum class SupervisorState { none, alive, stopped };
template <>
struct Words<SupervisorState> {
  static constexpr std::string_view list[] = {"none", "alive", "stopped"};
};

struct StatusView {
  int columns = 0, rows = 0;  ///< size of the terminal; 0: no limit
  bool color = false;
  std::vector<std::string> events;  ///< the newest lines of events.jsonl
  StepLine timed_step = {};         ///< the newest step with the numbers of all ranks
  double step_s = StepLine::kAbsent;  ///< StepPace::mean_s of the newest steps
  std::string time;                   ///< ledger_text
};

/// One screen of text. `now_unix_s`: the current time, for ages.
std::string render_status(const RunStatus& status, SupervisorState supervisor, double now_unix_s,
                          const StatusView& view = {});
/// An activity as text, without peers and communicator, because these differ between ranks that do the same.
std::string activity_text(const Activity& activity);
/// One line for each distinct activity, "ranks 0-3,5: step 12: forward".
std::vector<std::string> rank_lines(const RunStatus& status);

/// A verdict on a run that hangs, crashed or is fine.
struct Diagnosis {
  /// healthy | starting | waiting | hang | supervisor_lost | failed | ended
  std::string verdict;
  std::string summary;               ///< one sentence
  std::vector<std::string> details;  ///< ranks grouped by what they do
  std::string advice;
};
std::string to_json(const Diagnosis& diagnosis);
Diagnosis diagnose(const RunStatus& status, SupervisorState supervisor, double now_unix_s);

}  // namespace trainctl
