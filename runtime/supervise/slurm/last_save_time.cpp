#include "runtime/supervise/slurm/last_save_time.h"

#include <algorithm>
#include <cmath>

namespace trainctl {

double expected_save_s(const EndOfTime& end) {
  if (end.saves_s.empty()) return end.first_save_s;
  return 1.5 * *std::max_element(end.saves_s.begin(), end.saves_s.end());
}

double begin_of_last_save_unix_s(const EndOfTime& end) {
  return end.deadline_unix_s - end.step_s - expected_save_s(end) - end.margin_s;
}

int signal_seconds(const EndOfTime& end) {
  const double needed_s = end.deadline_unix_s - begin_of_last_save_unix_s(end);
  return int(std::clamp(std::ceil(2 * needed_s), 60.0, 65535.0));
}

}  // namespace trainctl
