#include "runtime/supervise/decide/crash_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/text.h"

namespace trainctl {
namespace {

/// So many times the limit of failures alike end a run, however they failed.
constexpr int kIdleFactor = 3;

bool are_alike(const AttemptFailure& a, const AttemptFailure& b) {
  if (a.code != b.code || a.step != b.step || a.stepped != b.stepped || a.lost != b.lost) return false;
  const bool same_place = (a.rank >= 0 && a.rank == b.rank) || (!a.node.empty() && a.node == b.node);
  return same_place || (a.stepped && !a.lost);
}

}  // namespace

int CrashLoop::most_idle() const { return std::max(kIdleFactor * options_.alike, options_.max_restarts); }

void CrashLoop::progressed() {
  restarts_ = alike_ = idle_ = 0;
  is_put_out_ = false;
}

void CrashLoop::count(const AttemptFailure& failure, bool made_progress) {
  if (made_progress) {
    progressed();
  } else {
    ++idle_;
    alike_ = last_ && are_alike(failure, *last_) ? alike_ + 1 : 1;
  }
  restarts_ += !failure.is_out;
  last_ = failure;
}

std::string CrashLoop::text() const {
  const bool failed_alike = alike_ >= limit(options_.alike);
  const int attempts = failed_alike ? alike_ : idle_;
  return fmt::format("{} in a row made no progress{}", count_of(attempts, "attempt"),
                     attempts == alike_ ? " and failed alike" : "");
}

}  // namespace trainctl
