// Where the time of a run went, read from its events.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace trainctl::test {

struct Ledger {
  /// By cause: stepping, redoing (steps that a failure had undone), starting, first_step, detecting, ending,
  /// deciding, unsupervised, closing. Durations as the run reports them, but for supervisors that were
  /// killed: they report nothing, and the times of the events around them are taken.
  std::map<std::string, double> seconds;
  double wall_s = 0;  ///< from the first event to the last, by their time
  double sum() const;
  std::string text() const;
};

Ledger ledger_of(const std::vector<Json>& events);

}  // namespace trainctl::test
