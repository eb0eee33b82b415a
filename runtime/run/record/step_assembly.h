// StepAssembly makes the record of each step of an attempt from what rank 0 reports of it and the times that
// every rank reports by itself, in the order of steps. Pure: the caller passes the monotonic time in seconds.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/record.h"
#include "runtime/train/control/control.h"

namespace trainctl {

/// What is recorded of a step.
struct StepRecord {
  StepLine line;      ///< for metrics.jsonl
  bool log = true;    ///< the console's table shows it
  std::string ranks;  ///< a line of metrics.ranks.jsonl; "": none of this step
  std::string experts = {};  ///< a line of metrics.experts.jsonl; "": none of this step
  std::vector<RankTimes> times = {};  ///< [world_size], as they came; empty: none of this step
  int stages = 1;                     ///< as of StepWork
};

/// The report with the times of the ranks, [world_size]; those that did not come are left out, null in
/// StepRecord::ranks. `nodes`: the ranks of each node; empty: one machine.
StepRecord record_of(const StepReport& report, std::span<const RankTimes> ranks,
                     std::span<const NodeRanks> nodes);

class StepAssembly {
 public:
  struct Options {
    int ranks = 1;
    std::vector<NodeRanks> nodes;  ///< as of record_of
    int64_t after_step = -1;       ///< steps up to this one are recorded already
    double patience_s = 2;         ///< so long a report waits for times of ranks
  };
  /// Steps that wait at one time. Beyond it the oldest goes without the times that have not come.
  static constexpr size_t kMostSteps = 16;

  explicit StepAssembly(Options options) : options_(std::move(options)) {}

  // ---- inputs. What is said of a step that is recorded already does not count.
  /// `sequence`: of the message that brought the report.
  void report(const StepReport& report, uint64_t sequence, double now_s);
  void times(int64_t step, int rank, const RankTimes& times);

  // ---- outputs
  /// The records of steps that wait for nothing more.
  std::vector<StepRecord> take(double now_s);
  /// Those of all reports, because no more times will come.
  std::vector<StepRecord> take_all();
  /// The sequence of the oldest report that was not taken; nullopt: none waits.
  std::optional<uint64_t> oldest_sequence() const;
  /// When take must be called at the latest; infinity: no report waits.
  double deadline_s() const;

 private:
  struct Step {
    std::optional<StepReport> report;
    uint64_t sequence = 0;
    double since_s = 0;            ///< when the report came
    std::vector<RankTimes> times;  ///< [ranks], or empty: none came
    int missing = 0;               ///< of `times`
  };
  bool is_complete(const Step& step) const {
    return !step.report->work || (!step.times.empty() && step.missing == 0);
  }
  const Step* oldest_report() const;
  StepRecord take_first();

  const Options options_;
  int64_t taken_ = options_.after_step;
  std::map<int64_t, Step> steps_;
};

}  // namespace trainctl
