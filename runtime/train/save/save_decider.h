// SaveDecider keeps the calendar of saves on rank 0: it measures the saves for the calendar, and reports its
// decisions.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/train/save/save_calendar.h"
#include "runtime/train/save/saver.h"

namespace trainctl {

/// One thread. Times are monotonic.
class SaveDecider {
 public:
  struct Options {
    bool decides = false;  ///< this is rank 0; on other ranks it does nothing
    CheckpointSpec checkpoint;
    std::vector<SaveHistory> history;
    int nodes = 1;
    int64_t step = 0;          ///< completed steps at the start
    bool waits = true;         ///< training waits for saves to the directory
    bool has_partner = false;  ///< copies go to the memory of another node, too
    std::function<void(const SaveInterval&)> decided;
    std::function<void(const ShortInterval&)> warned;
  };
  SaveDecider(Options options, Clock& clock);

  /// Where to save after `step`, whose optimizer has not run yet, ; empty on ranks other than 0. The
  /// union over the ranks is the decision of all.
  SaveSet due(int64_t step) const;
  /// A step has ended that took `seconds` without saves and evaluation.
  void stepped(double seconds);
  /// Calls `stage`, which begins the saves after `step` and returns where they go. A save that is left out
  /// and is due by time stays due.
  void count(int64_t step, const std::function<SaveTargets()>& stage);
  /// Training has waited for `waited_s` until the copies of the last save were complete. `writes`: some rank
  /// still writes to the directory or to its partner.
  void fenced(double waited_s, bool writes);

 private:
  void report();
  const Options options_;
  Clock& clock_;
  std::optional<SaveCalendar> calendar_;
  /// Of the newest save beyond the memory of the node: where it goes, when it began, what it has cost;
  /// nullopt when that is known.
  SaveTier farthest_ = SaveTier::directory;
  std::optional<double> began_s_, stall_s_;
};

}  // namespace trainctl
