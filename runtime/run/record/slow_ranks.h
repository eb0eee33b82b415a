// Ranks that compute longer than those that do the same work, step after step: a person hears of them once,
// and once when it is over. Pure; one thread.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace trainctl {

class SlowRanks {
 public:
  struct Notice {
    std::string kind;  ///< of an event: slow_ranks | slow_ranks_over
    std::string json;  ///< its fields
    std::string line;  ///< for the console
  };
  /// After each step: what is new. A node (or, where nodes are not known, a set of ranks) is slow when it was
  /// an outlier in kReports steps in a row that carry numbers of ranks, over kSeconds at least: on busy cores
  /// a few short steps say nothing. It is no longer slow when it was none for as long.
  std::vector<Notice> step(const std::string& step_json, double unix_s);
  /// A new attempt: ranks may be elsewhere.
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
