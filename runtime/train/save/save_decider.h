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
    bool has_memory = false;   ///< copies are made in the memory of the node
    bool has_partner = false;  ///< copies go to the memory of another node, too
    std::function<int64_t()> newest_save;  ///< the number of the newest save to the directory that was begun
    std::function<std::optional<Control::SaveResult>(int64_t number)> saved;  ///< Control::saved
    std::function<void(const SaveInterval&)> decided;
    std::function<void(const ShortInterval&)> warned;
  };
  SaveDecider(Options options, Clock& clock);

  /// Where to save after `step`, whose optimizer has not run yet; empty on ranks other than 0. The
  /// union over the ranks is the decision of all.
  SaveSet due(int64_t step) const;
  /// A step has ended that took `seconds` without saves and evaluation.
  void stepped(double seconds);
  /// Calls `stage`, which begins the saves after `step` and returns where they go. A save that is left out
  /// and is due by time stays due.
  void count(int64_t step, const std::function<SaveTargets()>& stage);
  /// Training has waited for `waited_s` until the copies of the last save were complete. `saves`: of any
  /// rank.
  void fenced(double waited_s, const SavesUnderWay& saves);

 private:
  /// The newest copy to the partner, until it is known what became of it.
  struct PartnerCopy {
    double began_s = 0;
    bool alone = false;              ///< nothing goes to the directory with it
    bool ended = false, ok = false;  ///< it ended during this step
  };
  /// A save to the directory, until it is known what became of it. Newer ones may have begun.
  struct DirectorySave {
    int64_t number = 0;
    double began_s = 0;
  };
  void take_partner_result(const SavesUnderWay& saves, double now_s);
  void report();
  const Options options_;
  Clock& clock_;
  std::optional<SaveCalendar> calendar_;
  std::optional<PartnerCopy> partner_;
  std::optional<DirectorySave> directory_;
  /// What the newest copy has cost training, until that is known, and whether it is on its way to the
  /// directory.
  std::optional<double> stall_s_;
  bool stalls_for_directory_ = false;
};

}  // namespace trainctl
