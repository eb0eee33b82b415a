// How often a run saves to each tier, and why: the records that rank 0, the supervisor and people exchange.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/words.h"

namespace trainctl {

/// Where a save is kept: the memory of the node, that of its partner, the run's folder of checkpoints, an
/// object store.
enum class SaveTier { memory, partner, directory, store };
template <>
struct Words<SaveTier> {
  static constexpr std::string_view list[] = {"memory", "partner", "directory", "store"};
};
inline constexpr int kSaveTiers = 4;

/// What decided an interval: the field of the spec that gives it, or the bound of the automatic decision.
/// unmeasured: nothing yet, the first save comes after what is given here.
enum class IntervalReason {
  every_steps,
  every_seconds,
  unmeasured,
  least_loss,
  min_steps,
  write_time,
  max_time
};
template <>
struct Words<IntervalReason> {
  static constexpr std::string_view list[] = {"every_steps", "every_seconds", "unmeasured", "least_loss",
                                              "min_steps",   "write_time",    "max_time"};
};

/// What the attempts so far tell about one tier; a part of attempt.json.
struct SaveHistory {
  SaveTier tier = SaveTier::directory;
  int64_t failures = 0;   ///< after which this tier had to be read, or nothing was there
  double observed_s = 0;  ///< duration of all attempts together
  // The newest measurements; 0: none.
  double cost_s = 0, write_s = 0, step_s = 0;
  static void fields(auto& f, auto& r) {
    f("tier", r.tier);
    f("failures", r.failures);
    f("observed_s", r.observed_s);
    f("cost_s", r.cost_s);
    f("write_s", r.write_s);
    f("step_s", r.step_s);
  }
};

/// How often the run saves to one tier from now on, with the numbers of the decision: the event `interval`
/// and a part of status.json.
struct SaveInterval {
  SaveTier tier = SaveTier::directory;
  IntervalReason reason = IntervalReason::every_steps;
  int64_t steps = 0;      ///< from one save to the next
  double interval_s = 0;  ///< the same in seconds; of the first save: whichever comes first, 0: not by it
  double step_s = 0;      ///< measured: one step without a save
  double cost_s = 0;      ///< measured: what a save costs training
  double write_s = 0;     ///< measured: from the begin of a save until it is safe
  double mtbf_s = 0;      ///< mean time between the failures that this tier recovers from
  int64_t failures = 0;   ///< observed ones
  double observed_s = 0;
  double loss = 0;  ///< expected fraction of time lost by saves and by repeated work
  /// False: the spec gives it.
  bool automatic() const { return reason >= IntervalReason::least_loss; }
  /// "every 12 steps (2m 4s): a save costs 0.4 s, one failure in 5h 20m; loses 0.6 %", or
  /// "first save after 10 steps or 1h 0m; then from its measured cost"
  std::string text() const;
  static void fields(auto& f, auto& r) {
    f("tier", r.tier);
    f("reason", r.reason);
    f("steps", r.steps);
    f("interval_s", r.interval_s);
    f("step_s", r.step_s);
    f("cost_s", r.cost_s);
    f("write_s", r.write_s);
    f("mtbf_s", r.mtbf_s);
    f("failures", r.failures);
    f("observed_s", r.observed_s);
    f("loss", r.loss);
    f.written("text", r.text());
  }
};

/// Puts `now` in the place of the entry of its tier.
void replace_interval(std::vector<SaveInterval>& intervals, const SaveInterval& now);

/// Saves to a tier follow each other sooner than one of them is safe: the event `interval_short`.
struct ShortInterval {
  SaveTier tier = SaveTier::directory;
  int64_t steps = 0;  ///< from one save to the next, as the spec asks
  double interval_s = 0, write_s = 0;
  int64_t enough_steps = 0;  ///< the shortest interval that lets every save finish
  bool waits = false;        ///< training waits for each save; false: saves are left out while one is written
  std::string text() const;
  static void fields(auto& f, auto& r) {
    f("tier", r.tier);
    f("steps", r.steps);
    f("interval_s", r.interval_s);
    f("write_s", r.write_s);
    f("enough_steps", r.enough_steps);
    f("waits", r.waits);
    f.written("text", r.text());
  }
};

}  // namespace trainctl
