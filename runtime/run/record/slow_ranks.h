// SlowRanks reports what Stragglers finds in a run's steps: each trouble once, when it has lasted, and once
// more when it is over. Pure; one thread.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/run/record/stragglers.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl {

class SlowRanks {
 public:
  struct Notice {
    EventKind kind;    ///< kind of the event: slow_ranks | slow_ranks_over
    std::string json;  ///< fields of the event: cause, node, ranks, count, share, step, text
    std::string line;  ///< for the console
  };
  /// Call after each step with the numbers of its ranks; returns new notices. A trouble is reported when
  /// kJudgements in a row have found it, over kSeconds of steps at least: fewer are noise on busy cores. It is
  /// over when as many have not.
  ///   nodes   called where a judgement is due
  ///   step_s  how long the step took; those since the last one are taken for as long
  std::vector<Notice> step(int64_t step, std::span<const RankTimes> ranks, int stages,
                           const std::function<std::vector<NodeRanks>()>& nodes, double step_s);
  /// Forgets all counts. Call it for a new attempt, in which ranks may run on other nodes.
  void forget() { *this = {}; }

  static constexpr int kJudgements = 2;
  static constexpr double kSeconds = 10;

 private:
  struct Seen {
    Straggler straggler;
    int in_a_row = 0, absent_in_a_row = 0;
    double since_s = 0, absent_since_s = 0;
    bool noticed = false, is_found = false;
  };
  Stragglers stragglers_;
  int64_t last_step_ = -1;
  double seconds_ = 0;  ///< of the steps so far
  std::vector<Seen> seen_;
};

}  // namespace trainctl
