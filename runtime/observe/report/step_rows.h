// StepRows: the steps of a run as the report shows them, from the lines of metrics.jsonl. A restart or resume
// computes some steps again; each step is here once, as its newest attempt computed it. Pure.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/observe/step_pace.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl::report {

/// The parts of a step. `communication` is what is neither of experts nor of context ranks (StepRow::phases).
inline constexpr std::array<std::pair<const char*, double Phases::*>, 10> kPhases = {
    {{"forward", &Phases::forward_s},
     {"backward", &Phases::backward_s},
     {"communication", &Phases::communication_s},
     {"optimizer", &Phases::optimizer_s},
     {"data", &Phases::data_s},
     {"reporting", &Phases::reporting_s},
     {"evaluation", &Phases::evaluation_s},
     {"checkpoint", &Phases::checkpoint_s},
     {"experts", &Phases::experts_s},
     {"context", &Phases::context_s}}};

/// What curves show of a step's line. Numbers that the line does not have are NaN. A report holds a row of
/// every step of a run: it has a fifth of the size of a StepLine, which holds the summaries of ranks and
/// GPUs.
struct StepRow {
  static constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();
  int64_t step = 0;
  uint64_t attempt = 0;  ///< 0: not known
  bool skipped = false, evaluated = false;
  double unix_s = kAbsent, tokens = kAbsent;
  double loss = kAbsent, val_loss = kAbsent, grad_norm = kAbsent, lr = kAbsent;
  double step_s = kAbsent, tokens_per_s = kAbsent, mfu = kAbsent;
  double compute_median_s = kAbsent, compute_max_s = kAbsent, peak_memory_bytes = kAbsent;
  int compute_max_rank = -1;
  std::optional<uint64_t> state_digest;
  std::vector<float> source_losses;  ///< in the order of StepRows::sources(); those behind its end: absent
  Phases phases = Phases::none();  ///< communication_s without its two parts, so that their sum is the step
  /// Of an evaluation or a save; 0 where the line does not say it.
  double phase_or_zero(double Phases::*phase) const {
    return std::isfinite(phases.*phase) ? phases.*phase : 0;
  }
};

/// The row of a line; its step is 0 if the text is no line of metrics.jsonl.
StepRow row_of(std::string_view line);
StepRow row_of(const StepLine& line);

/// A step behind which tasks were scored.
struct ScoredStep {
  StepRow row;
  std::vector<TaskScore> tasks;
};

class StepRows {
 public:
  /// A step that is not after the last one replaces it and all later ones.
  void take(const StepLine& line);
  void take(std::string_view line) { take(step_view(line)); }
  const std::vector<StepRow>& rows() const { return rows_; }
  int64_t replaced() const { return replaced_; }  ///< steps that a later line computed again
  int64_t damaged() const { return damaged_; }    ///< lines that are no step
  const std::vector<ScoredStep>& scored() const { return scored_; }
  /// The names of the sources of data that have losses of their own, in the order in which they came.
  const std::vector<std::string>& sources() const { return sources_; }
  /// The newest line that has the numbers of the ranks: not every step does.
  const StepLine& newest_timed() const { return newest_timed_; }

 private:
  std::vector<float> losses_of(const std::vector<SourceLoss>& sources);
  StepLine newest_timed_;
  std::vector<StepRow> rows_;
  std::vector<ScoredStep> scored_;
  std::vector<std::string> sources_;
  int64_t replaced_ = 0, damaged_ = 0;
};

/// The pace of the newest steps.
StepPace pace_of(const std::vector<StepRow>& rows);

/// About `most` of the rows, ascending: the first, the last, and of each stretch those with the smallest and
/// the largest loss, the largest gradient norm and the longest time. All rows if they are not more.
std::vector<size_t> shown_rows(const std::vector<StepRow>& rows, size_t most);

/// A number with so many significant digits; null: not finite.
OrderedJson number(double value, int digits = 5);

/// The curves as columns of equal length: {"step":[1,2,...],"loss":[...],...}, of at most about `most` steps,
/// and the evaluations in columns of their own, and so each task by its name; the loss of each source of
/// data is a column of "sources". A column without a number is left out. Times are seconds
/// since `begin_unix_s`.
OrderedJson curves_json(const StepRows& steps, double begin_unix_s, size_t most);

}  // namespace trainctl::report
