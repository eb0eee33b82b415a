// AttemptTimes measures the parts of each attempt and writes them as events: `attempt` (all parts of one
// attempt) and `recovered` (from the first evidence of a failure to the first step after it).
#pragma once
#include <string>

#include "runtime/supervise/attempt/attempt.h"

namespace trainctl {

class AttemptTimes {
 public:
  AttemptTimes(RunLog& log, Clock& clock);
  void begun();
  void all_present();
  void stepped();
  /// Writes the event `attempt`.
  void ended(const Verdict& verdict, const AttemptResult& result);

 private:
  void recovered(double now_s);
  RunLog& log_;
  Clock& clock_;
  /// Monotonic times of the current attempt. free_s: when the attempt before it ended.
  struct {
    double free_s = 0, begun_s = 0, up_s = 0, first_s = 0, last_s = 0;
  } times_;
  struct {
    std::string cause;  ///< "": nothing has failed since the last step
    double evidence_s = 0, ended_s = 0;
  } outage_;
};

}  // namespace trainctl
