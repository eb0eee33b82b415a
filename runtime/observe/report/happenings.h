// What happened in a run, from events.jsonl: marks on its curves and rows of a table; the times in which a
// supervisor held it; and what its time was spent on. Pure.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/observe/report/step_rows.h"

namespace trainctl::report {

class Happenings {
 public:
  void take(std::string_view line);
  const std::vector<Json>& events() const { return events_; }
  int64_t damaged() const { return damaged_; }
  /// When the first event was; NaN: there is none.
  double begin_unix_s() const;
  double last_unix_s() const;

 private:
  std::vector<Json> events_;  // each is an object with a kind and a time
  int64_t damaged_ = 0;
};

/// A time in which one supervisor held the run.
struct Session {
  double begin_unix_s = 0, end_unix_s = 0;
};
/// `now_unix_s`: the end of the last session if the run goes on; NaN: it does not. A supervisor that was
/// killed ends with the last step or event before the next one.
std::vector<Session> sessions_of(const Happenings& happenings, const std::vector<StepRow>& rows,
                                 double now_unix_s);

/// Steps that were computed and then given up, because the run went back behind them.
class LostSteps {
 public:
  /// In the order in which they were computed.
  void take(std::string_view line);
  int64_t steps() const { return steps_; }
  double seconds() const { return seconds_; }

 private:
  int64_t steps_ = 0;
  double seconds_ = 0;
  StepRow before_;
};

/// What the time of a run was spent on, in seconds.
struct TimeUse {
  double supervised_s = 0;  ///< with a supervisor; all others are parts of it
  double training_s = 0;    ///< steps that count
  double evaluation_s = 0, saving_s = 0;
  double lost_s = 0;   ///< steps that were done again
  double other_s = 0;  ///< starting, failing, recovering, waiting for nodes, ending
  int64_t lost_steps = 0;
  /// training_s / supervised_s; NaN if nothing is known.
  double goodput() const;
};
/// From the times at which steps ended; where lines do not say them, from the longest times of the ranks, and
/// where only some steps of an attempt have these, all of it is taken to be like them.
TimeUse time_use(const std::vector<StepRow>& rows, const LostSteps& lost,
                 const std::vector<Session>& sessions);
OrderedJson time_use_json(const TimeUse& use);

/// The events for people: [{"t": seconds since begin_unix_s, "kind", "mark", "step", "text"}, ...]. `mark`:
/// how it is drawn: start, failure, restart, checkpoint, warning, node, skipped, change, stop, end; "": in
/// the table only. `step`: where on the curves, without one: nowhere. At most about `most`, of which
/// checkpoints are at most a third; older ones are left out, the result says how many.
OrderedJson happenings_json(const Happenings& happenings, const std::vector<StepRow>& rows,
                                       double begin_unix_s, size_t most);

}  // namespace trainctl::report
