#include "runtime/supervise/decide/crash_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/text.h"

namespace trainctl {
namespace {

bool are_alike(const AttemptFailure& a, const AttemptFailure& b) {
  if (a.code != b.code || a.step != b.step || a.stepped != b.stepped || a.lost != b.lost) return false;
  const bool same_place = (a.rank >= 0 && a.rank == b.rank) || (!a.node.empty() && a.node == b.node);
  return same_place || (a.stepped && !a.lost);
}

}  // namespace

void CrashLoop::count(const AttemptFailure& failure, bool made_progress) {
  if (made_progress) {
    alike_ = idle_ = 0;
  } else {
    ++idle_;
    alike_ = last_ && are_alike(failure, *last_) ? alike_ + 1 : 1;
  }
  last_ = failure;
}

void CrashLoop::allow_one_more() {
  alike_ = std::min(alike_, limit_ - 1);
  idle_ = std::min(idle_, kIdleFactor * limit_ - 1);
}

std::string CrashLoop::text() const {
  const bool failed_alike = alike_ >= limit_;
  const int attempts = failed_alike ? alike_ : idle_;
  return fmt::format("{} in a row made no progress{}", count_of(attempts, "attempt"),
                     attempts == alike_ ? " and failed alike" : "");
}

}  // namespace trainctl
