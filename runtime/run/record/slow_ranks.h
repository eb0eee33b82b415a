// SlowRanks finds ranks that compute longer than other ranks with the same work, over several steps. It
// reports them once, and once more when they are no longer slow. Pure; one thread.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/train/control/event_kind.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

class SlowRanks {
 public:
  struct Notice {
    EventKind kind;    ///< kind of the event: slow_ranks | slow_ranks_over
    std::string json;  ///< fields of the event
    std::string line;  ///< for the console
  };
  /// Call after each step; returns new notices. A node (or a set of ranks if nodes are not known) becomes
  /// slow when it was an outlier in kReports consecutive reports with per-rank numbers and for at least
  /// kSeconds. Fewer reports are noise on busy cores. The node stops being slow when it was no outlier for as
  /// many reports and as long.
  std::vector<Notice> step(const StepLine& line, double unix_s);
  /// Forgets all counts. Call it for a new attempt, in which ranks may run on other nodes.
  void forget() { seen_.clear(); }

  static constexpr int kReports = 5;
  static constexpr double kSeconds = 10;

 private:
  struct Seen {
    int in_a_row = 0, absent_in_a_row = 0;
    double since_s = 0, absent_since_s = 0;
    bool noticed = false;
  };
  std::map<std::string, Seen> seen_;  ///< by the node's name, or "ranks 4, 5" where nodes are not known
};

}  // namespace trainctl
