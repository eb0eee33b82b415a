// SaveDecider keeps the calendar of saves on rank 0: it measures the saves for the calendar, and reports its
// decisions.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/train/save/save_calendar.h"

namespace trainctl {

/// One thread. Times are monotonic.
class SaveDecider {
 public:
  struct Options {
    bool decides = false;  ///< this is rank 0; on other ranks it does nothing
    CheckpointSpec checkpoint;
    std::vector<SaveHistory> history;
    int nodes = 1;
    int64_t step = 0;   ///< completed steps at the start
    bool waits = true;  ///< training waits for saves to the directory
    std::function<void(const SaveInterval&)> decided;
    std::function<void(const ShortInterval&)> warned;
  };
  SaveDecider(Options options, Clock& clock);

  /// Where to save after `step`, whose optimizer has not run yet, as a SaveSet's number; 0 on ranks other
  /// than 0. The sum over the ranks is the decision of all.
  double due(int64_t step) const;
  /// A step has ended that took `seconds` without saves and evaluation.
  void stepped(double seconds);
  /// Calls `stage`, which begins the saves after `step`. `to_directory`: one of them goes to the directory;
  /// while a rank still writes there, none does, and a save that is due by time stays due.
  void count(int64_t step, bool to_directory, const std::function<void()>& stage);
  /// Training has waited for `waited_s` until the copies of the last save were complete. `writes`: some rank
  /// still writes to the directory.
  void fenced(double waited_s, bool writes);

 private:
  void report();
  const Options options_;
  Clock& clock_;
  std::optional<SaveCalendar> calendar_;
  /// Of the newest save to the directory: when it began, what it has cost; nullopt when that is known.
  std::optional<double> began_s_, stall_s_;
};

}  // namespace trainctl
