#include "runtime/supervise/loop/attempt_times.h"

#include <algorithm>

#include "runtime/base/json.h"

namespace trainctl {

AttemptTimes::AttemptTimes(RunLog& log, Clock& clock) : log_(log), clock_(clock) {
  times_.free_s = clock.monotonic_s();
}

void AttemptTimes::begun() { times_.begun_s = clock_.monotonic_s(); }

void AttemptTimes::all_present() { times_.up_s = clock_.monotonic_s(); }

void AttemptTimes::stepped() {
  times_.last_s = clock_.monotonic_s();
  if (times_.first_s > 0) return;
  times_.first_s = times_.last_s;
  recovered(times_.last_s);
}

void AttemptTimes::recovered(double now_s) {
  if (outage_.cause.empty()) return;
  log_.event(EventKind::recovered, dump_json(Json{{"epoch", log_.status().epoch},
                                         {"cause", outage_.cause},
                                         {"ending_s", outage_.ended_s - outage_.evidence_s},
                                         {"deciding_s", times_.begun_s - outage_.ended_s},
                                         {"starting_s", times_.up_s - times_.begun_s},
                                         {"first_step_s", now_s - times_.up_s},
                                         {"seconds", now_s - outage_.evidence_s}}));
  outage_ = {};
}

void AttemptTimes::ended(const Verdict& v, const AttemptResult& result) {
  const double now_s = clock_.monotonic_s(), end_s = result.first_evidence_s.value_or(now_s);
  const auto or_end = [&](double time_s) { return time_s > 0 ? std::min(time_s, end_s) : end_s; };
  // After an attach steps may have come before the last rank.
  const double up_s = or_end(times_.up_s), first_s = std::max(up_s, or_end(times_.first_s));
  const double last_s = times_.first_s > 0 ? std::max(first_s, or_end(times_.last_s)) : first_s;
  log_.event(EventKind::attempt, dump_json(Json{{"epoch", log_.status().epoch},
                                       {"outcome", v.outcome == Verdict::failed ? name_of(v.code) : "ended"},
                                       {"deciding_s", times_.begun_s - times_.free_s},
                                       {"starting_s", up_s - times_.begun_s},
                                       {"first_step_s", first_s - up_s},
                                       {"stepping_s", last_s - first_s},
                                       {"detecting_s", end_s - last_s},
                                       {"ending_s", now_s - end_s}}));
  times_ = {.free_s = now_s};
  if (v.outcome != Verdict::failed && !result.regrouped) return;
  // A failure before the first step belongs to the outage that began earlier.
  if (outage_.cause.empty())
    outage_ = {.cause = v.outcome == Verdict::failed ? name_of(v.code) : "regroup", .evidence_s = end_s};
  outage_.ended_s = now_s;
}

}  // namespace trainctl
