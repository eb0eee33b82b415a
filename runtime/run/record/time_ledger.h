// TimeLedger: what each second of each rank of a run was spent on, over all attempts. Every second has one
// cause, so the causes add up to the wall time, and with the ranks to the rank-hours. The simulator of
// fleets uses the same causes (runtime/simulate). Pure: made of the lines of events.jsonl and
// metrics.jsonl.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/words.h"
#include "runtime/train/control/event_kind.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

enum class TimeCause {
  training,    ///< steps that count: computing, and exchanges that are not hidden
  bubble,      ///< in these steps: waits for the neighbours in the pipeline
  stragglers,  ///< in these steps: waits for ranks that computed longer than others of their stage
  evaluation,
  saving,      ///< training waits for a save
  recomputed,  ///< steps that were given up, because the run went back behind them
  detecting,   ///< from the last finished step to the first evidence of a failure
  recovering,  ///< until all ranks are gone, and until the next attempt begins
  idle,        ///< no attempt runs: nodes or storage are waited for
  starting,    ///< ranks start, meet and build the model; and they end in order
  loading,     ///< the state is loaded
  stopped,     ///< no supervisor held the run
  unknown,     ///< the records of this version of the program do not say it
};
inline constexpr size_t kTimeCauses = size_t(TimeCause::unknown) + 1;
template <>
struct Words<TimeCause> {
  static constexpr std::string_view list[] = {
      "training",   "bubble", "stragglers", "evaluation", "saving",  "recomputed", "detecting",
      "recovering", "idle",   "starting",   "loading",    "stopped", "unknown"};
};
static_assert(std::size(Words<TimeCause>::list) == kTimeCauses);
/// A part of steps that count.
constexpr bool counts(TimeCause cause) { return cause <= TimeCause::stragglers; }
/// What a person reads: "steps that count".
const char* sentence_of(TimeCause cause);

/// A number for each cause.
template <typename Number>
struct ByCause : std::array<Number, kTimeCauses> {
  using std::array<Number, kTimeCauses>::operator[];
  Number& operator[](TimeCause cause) { return this->data()[size_t(cause)]; }
  const Number& operator[](TimeCause cause) const { return this->data()[size_t(cause)]; }
  Number sum() const {
    Number all{};
    for (const Number& one : *this) all += one;
    return all;
  }
};

/// An attempt, with the time since the one before it.
struct AttemptTime {
  uint64_t epoch = 0;  ///< 0: the run has made no attempt yet
  int ranks = 0;
  double begin_unix_s = 0, end_unix_s = 0;
  ByCause<double> seconds{};  ///< of a rank, as the mean over the ranks; adds up to the wall time
  int64_t steps = 0, lost_steps = 0;
};

struct TimeLedger {
  std::vector<AttemptTime> attempts;  ///< one after another, without gaps
  ByCause<double> seconds() const;
  ByCause<double> rank_seconds() const;
  double wall_s() const { return seconds().sum(); }
  double supervised_s() const;  ///< without the time in which it was stopped
  int64_t lost_steps = 0;       ///< that were given up, of all attempts
  /// The share of the supervised time that went into steps that count; NaN if nothing is known.
  double goodput() const;
};
/// "goodput 94.6 % of 1h 2m; evaluation 2.1 %, starting and ending ranks 1.9 %, ..."; "" if nothing is known.
std::string ledger_text(const TimeLedger& ledger);
OrderedJson ledger_json(const TimeLedger& ledger);

/// The time of the steps of an attempt, as the lines of metrics.jsonl say it.
struct StepTimes {
  int64_t steps = 0, lost = 0, timed = 0;
  double first_unix_s = NAN, last_unix_s = NAN;
  double first_step_s = NAN;       ///< how long the first step took
  double steps_s = 0, lost_s = 0;  ///< without evaluation and saving
  double evaluation_s = 0, saving_s = 0;
  /// Of the steps whose line has the parts: their time, and what of it was waited for.
  double parted_s = 0, bubble_s = 0, stragglers_s = 0, unknown_s = 0;
  double all_s() const { return steps_s + lost_s + evaluation_s + saving_s; }
};

/// What the ledger needs of a run's records, in the order in which they were written. Its size grows with
/// attempts and checkpoints, not with steps.
class TimeRecords {
 public:
  /// A line of events.jsonl.
  void event(const Json& event);
  /// A line of metrics.jsonl; `counts` false: of a file with lines that the run has given up.
  void step(const StepLine& line, bool counts);
  /// Before all lines are read again.
  void forget_events() { events_.clear(); }
  void forget_steps() { steps_.clear(), before_step_ = 0, before_epoch_ = 0, before_unix_s_ = NAN; }

  struct Event {
    EventKind kind = EventKind::start;
    double unix_s = 0;
    uint64_t epoch = 0;
    int ranks = 0;
    bool loads = false, failed = false;
    std::optional<double> waited_s, load_s;
    /// Of `attempt`: its parts.
    double starting_s = 0, first_step_s = 0, stepping_s = 0, detecting_s = 0, ending_s = 0;
  };
  const std::vector<Event>& events() const { return events_; }
  const StepTimes& steps_of(uint64_t epoch) const;
  int64_t lost_steps() const;

 private:
  std::vector<Event> events_;
  std::map<uint64_t, StepTimes> steps_;
  int64_t before_step_ = 0;
  uint64_t before_epoch_ = 0;
  double before_unix_s_ = NAN;
};

/// `now_unix_s`: a supervisor holds the run, and it is this late; NaN: none does, and the ledger ends with
/// the last record.
TimeLedger ledger_of(const TimeRecords& records, double now_unix_s);

}  // namespace trainctl
