// The views of a run's state: `status` (one screen) and `diagnose` (who is missing, where). Pure text.
#pragma once
#include <string>
#include <vector>

#include "runtime/run/record/run_status.h"

namespace trainctl {

/// What is known of a run's supervisor: none holds the run's lock; one does; one does and is stopped (SIGSTOP, ctrl-Z).
enum class SupervisorState { none, alive, stopped };

/// How much of it is shown, and where.
struct StatusView {
  int columns = 0, rows = 0;  ///< of the terminal; 0: any
  bool color = false;
  std::vector<std::string> events;  ///< the newest lines of events.jsonl
};

/// One screen. `now_unix_s` for ages.
std::string render_status(const RunStatus& status, SupervisorState supervisor, double now_unix_s,
                          const StatusView& view = {});
/// What a rank does, without its peers and their group, which differ between ranks that do the same.
std::string activity_text(const Activity& activity);
/// What the ranks do, "ranks 0-3,5: step 12: forward", one line per distinct activity.
std::vector<std::string> rank_lines(const RunStatus& status);

/// A verdict on a run that hangs, crashed or is fine.
struct Diagnosis {
  std::string verdict;               ///< healthy | starting | waiting | hang | supervisor_lost | failed | ended
  std::string summary;               ///< one sentence
  std::vector<std::string> details;  ///< ranks grouped by what they do
  std::string advice;
};
std::string to_json(const Diagnosis& diagnosis);
Diagnosis diagnose(const RunStatus& status, SupervisorState supervisor, double now_unix_s);

}  // namespace trainctl
