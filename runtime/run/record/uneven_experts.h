// UnevenExperts finds experts that have had no tokens, or far too many, for many steps. It reports each of the
// two once, and once more when neither is so any more. Pure; one thread.
#pragma once
#include <string>
#include <vector>

#include "runtime/train/control/event_kind.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

class UnevenExperts {
 public:
  struct Notice {
    EventKind kind;    ///< kind of the event: experts_idle | experts_uneven | experts_even
    std::string json;  ///< fields of the event
    std::string line;  ///< for the console
  };
  /// Call after each step; returns new notices. Lines without `experts` say nothing.
  std::vector<Notice> step(const StepLine& line);
  /// Forgets all counts. Call it where a run goes back to an earlier step.
  void forget() { *this = {}; }

  /// So many steps in a row. A router with random weights is uneven for some hundred steps.
  static constexpr int64_t kSteps = 500;
  /// Times the mean expert's tokens that are too many: kMost, or kOfPossible of what one expert can get,
  /// which is experts / top_k times the mean.
  static constexpr double kMost = 4, kOfPossible = 0.75;
  static double most_allowed(const ExpertSummary& s);

 private:
  int64_t uneven_steps_ = 0, even_steps_ = 0;
  bool noticed_idle_ = false, noticed_uneven_ = false;
};

/// "2.1 × the mean at most (layer 3, expert 17) · entropy 0.93 (layer 5) · all have tokens · step 400"
std::string experts_text(const ExpertSummary& s);

}  // namespace trainctl
