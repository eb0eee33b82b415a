// RunLog writes what happens in a run to metrics.jsonl, events.jsonl, status.json and the console, and what
// TensorBoard and Prometheus read. One thread, which waits for no file longer than FileWorker does.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/file_worker.h"
#include "runtime/base/record.h"
#include "runtime/run/record/console.h"
#include "runtime/run/record/events.h"
#include "runtime/run/record/journal.h"
#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"
#include "runtime/run/record/slow_ranks.h"
#include "runtime/run/record/step_assembly.h"
#include "runtime/run/record/summary.h"
#include "runtime/run/record/time_reader.h"
#include "runtime/run/record/uneven_experts.h"
#include "runtime/run/saves/save_collector.h"
#include "runtime/run/views/event_file.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl {

/// Durations that this supervisor has measured.
struct RunPace {
  std::vector<double> saves_s;  ///< duration of each save, in order
  double longest_step_s = 0;
};

class RunLog {
 public:
  /// Opens the journals. `console` must outlive this.
  RunLog(FileSystem& fs, Clock& clock, const RunDirectory& run, Console& console);

  /// Writes an event; `json` is an object with its fields.
  void event(EventKind kind, const std::string& json);
  template <typename Event>
  void event(const Event& event) {
    this->event(Event::kKind, record_text(event));
  }
  /// Writes the events for the start of this supervisor. `take_over`: why it replaces one that died, "" if it
  /// does not; `before`: the supervisor that it replaces.
  void supervisor_begins(const std::string& take_over, const std::string& before);
  /// Writes an event of a rank, and a line on the console for kinds that concern the user.
  void rank_event(EventKind kind, const std::string& json);
  /// Sets the last step of the run. After a failed save before that step, the console says that training goes
  /// on.
  void set_last_step(int64_t step) { last_step_ = step; }
  /// Whether ranks that hold up the others are looked for; they are unless it is called.
  void look_for_slow_ranks(bool looks) { looks_for_slow_ = looks; }
  void step(const StepRecord& record);
  void saved(const SaveOutcome& outcome, double seconds);
  /// Like saved, for a save that an earlier supervisor published. Writes the event only if that supervisor
  /// did not.
  void saved_before(const SaveOutcome& outcome);
  /// A save is not published because its file system does not answer. `text`: one sentence.
  void publishing_hangs(const std::string& text);
  /// This process stood still; the ranks went on, and their agents come back by themselves.
  void paused(double seconds, const std::string& run_directory);
  /// Copies the states of the ranks and writes status.json, at most once a second unless `now`.
  void update(const Supervision& supervision, bool now);
  /// Records that no attempt runs because the run waits for nodes. `why`: one sentence.
  void waiting(const std::string& why);
  /// No attempt ran for so long, because nodes or storage were waited for.
  void waited(double seconds) { waited_s_ += seconds; }
  /// The sum of these since the last call.
  double take_waited_s() { return std::exchange(waited_s_, 0.0); }
  /// Who is called with each event and each step that is recorded, and in each turn of a loop.
  struct Watch {
    std::function<void(EventKind kind, const std::string& json)> event = {};
    std::function<void(const StepLine&)> step = {};
    std::function<void()> turn = {};
  };
  void set_watch(Watch watch) { watch_ = std::move(watch); }
  /// Sets the function that returns the nodes each time status.json is written.
  void set_nodes(std::function<std::vector<NodeStatus>()> nodes) { nodes_ = std::move(nodes); }
  /// Writes status.json and makes the journals durable.
  void finish();
  /// Opens metrics.jsonl again. Call it after the file was replaced (supersede_metrics).
  void reopen_metrics();
  /// The thread that writes these files, for whatever else of the run's files a loop needs.
  FileWorker& files() { return files_; }
  /// Whether all of it is in the files.
  bool is_written() const { return files_.is_complete(); }
  /// Waits until all that was to be written is written: before the records are read or put aside.
  void await_files();
  /// The step of the last failed save, -1: none failed; and why it failed.
  int64_t save_failed_step() const { return save_failed_step_; }
  const std::string& save_failure() const { return save_failure_; }
  RunStatus& status() { return status_; }
  /// The summary of this launch or resume so far; "" before its first step.
  std::string summary(double val_bytes_per_token) const {
    return summary_.render(clock_.unix_s(), val_bytes_per_token);
  }
  const RunPace& pace() const { return pace_; }
  Console& console() { return console_; }

 private:
  void save_interval(const SaveInterval& now);
  void copy_failed(const std::string& tier, int64_t step, int rank, const std::string& reason);
  void copies_made(const StepLine& line);
  void write(bool with_ranks);
  void post_status(bool with_ranks);
  void check_journals();
  void check_answers();
  void notice_slow_ranks(const StepRecord& record);
  /// What the thread of files_ writes; it alone touches them.
  struct Written {
    Written(FileSystem& fs, const RunDirectory& run);
    std::unique_ptr<Journal> metrics;
    BoundedJournal rank_metrics, expert_metrics;
    Journal events;
    event_file::EventFiles curves;
    TimeReader time;
    Problem error() const { return metrics->error().exists() ? metrics->error() : events.error(); }
  };
  FileSystem& fs_;
  Clock& clock_;
  const RunDirectory run_;
  Console& console_;
  const std::shared_ptr<Written> written_files_;
  FileWorker files_;
  RunStatus status_;
  RunSummary summary_;
  SlowRanks slow_;
  UnevenExperts uneven_;
  RunPace pace_;
  int64_t save_failed_step_ = -1, last_step_ = INT64_MAX;
  std::string save_failure_;
  std::function<std::vector<NodeStatus>()> nodes_;
  double waited_s_ = 0;
  Watch watch_;
  double written_s_ = -1e9, ranks_written_s_ = -1e9;
  /// The step whose copy failed and was reported; -1: copies are made since.
  int64_t failed_copy_ = -1, failed_second_copy_ = -1;
  bool looks_for_slow_ = true;
  bool told_journal_error_ = false, told_memory_off_ = false, told_silence_ = false;
};

}  // namespace trainctl
