// What happened in a run, from events.jsonl: marks on its curves and rows of a table. Pure.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/observe/report/step_rows.h"

namespace trainctl::report {

class Happenings {
 public:
  /// Returns the event, until the next call; null: the line is damaged.
  const Json* take(std::string_view line);
  const std::vector<Json>& events() const { return events_; }
  int64_t damaged() const { return damaged_; }
  /// When the first event was; NaN: there is none.
  double begin_unix_s() const;
  double last_unix_s() const;

 private:
  std::vector<Json> events_;  // each is an object with a kind and a time
  int64_t damaged_ = 0;
};

/// The events for people: [{"t": seconds since begin_unix_s, "kind", "mark", "step", "text"}, ...]. `mark`:
/// how it is drawn: start, failure, restart, checkpoint, warning, node, skipped, change, stop, end; "": in
/// the table only. `step`: where on the curves, without one: nowhere. At most about `most`, of which
/// checkpoints are at most a third; older ones are left out, the result says how many.
OrderedJson happenings_json(const Happenings& happenings, const std::vector<StepRow>& rows,
                                       double begin_unix_s, size_t most);

}  // namespace trainctl::report
