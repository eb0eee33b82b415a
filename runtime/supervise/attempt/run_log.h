// Where everything that happens in a run goes: metrics.jsonl, events.jsonl, status.json and the console. One
// thread.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "runtime/run/record/console.h"
#include "runtime/run/record/journal.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"
#include "runtime/run/record/save_collector.h"
#include "runtime/run/record/slow_ranks.h"
#include "runtime/run/record/summary.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl {

/// What this supervisor has measured.
struct RunPace {
  std::vector<double> saves_s;  ///< each save, in order
  double longest_step_s = 0;
};

class RunLog {
 public:
  /// Opens the journals. `console` must outlive this.
  RunLog(FileSystem& fs, Clock& clock, const RunDirectory& run, Console& console);

  void event(const std::string& kind, const std::string& json);
  /// This process. `take_over`: why it takes the place of one that died, or ""; `before`: of which.
  void supervisor_begins(const std::string& take_over, const std::string& before);
  /// The same for an event of a rank, which may concern the person at the console.
  void rank_event(const std::string& kind, const std::string& json);
  /// The step at which the run ends: a save that fails there is not followed by training.
  void set_last_step(int64_t step) { last_step_ = step; }
  void step(const StepReport& report);
  void saved(const SaveOutcome& outcome, double seconds);
  /// The same for a save that a supervisor before has published, and has recorded or not.
  void saved_before(const SaveOutcome& outcome);
  /// Takes over what is known of the ranks; writes status.json when a second has passed, or at once if `now`.
  void update(const Supervision& supervision, bool now);
  /// No attempt runs: the run waits for nodes. One sentence.
  void waiting(const std::string& why);
  /// Asked for the nodes each time status.json is written.
  void set_nodes(std::function<std::vector<NodeStatus>()> nodes) { nodes_ = std::move(nodes); }
  /// Writes status.json and makes the journals durable.
  void finish();
  /// After metrics.jsonl was replaced (supersede_metrics).
  void reopen_metrics() { metrics_.emplace(run_.metrics()), slow_.forget(); }
  /// The step of the last save that failed, -1 if none did, and why.
  int64_t save_failed_step() const { return save_failed_step_; }
  const std::string& save_failure() const { return save_failure_; }
  RunStatus& status() { return status_; }
  /// What this launch or resume did so far; empty before its first step.
  std::string summary() const { return summary_.render(clock_.unix_s()); }
  const RunPace& pace() const { return pace_; }
  Console& console() { return console_; }

 private:
  void write(bool with_ranks);
  void check_journals();
  FileSystem& fs_;
  Clock& clock_;
  const RunDirectory run_;
  Console& console_;
  std::optional<Journal> metrics_;
  BoundedJournal rank_metrics_;
  Journal events_;
  RunStatus status_;
  RunSummary summary_;
  SlowRanks slow_;
  RunPace pace_;
  int64_t save_failed_step_ = -1, last_step_ = INT64_MAX;
  std::string save_failure_;
  std::function<std::vector<NodeStatus>()> nodes_;
  double written_s_ = -1e9, ranks_written_s_ = -1e9;
  bool told_journal_error_ = false;
};

}  // namespace trainctl
