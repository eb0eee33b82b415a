#include "runtime/supervise/history/save_history.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/run/record/journal.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl {
namespace {

/// Adds up the attempts, event by event.
class Attempts {
 public:
  void take(EventKind kind, double unix_s) {
    if (kind == EventKind::start) {
      close(!regrouped_);
      open_ = true, up_ = regrouped_ = false;
      began_s_ = last_s_ = unix_s;
      return;
    }
    if (!open_) return;
    // A supervisor that resumes a dead run writes events before its first attempt.
    if (kind == EventKind::supervisor) {
      replaced_ = true;
      return;
    }
    if (kind == EventKind::attached) replaced_ = false;
    if (replaced_) return;
    last_s_ = std::max(last_s_, unix_s);
    if (kind == EventKind::ranks_up || kind == EventKind::attached) up_ = true;
    if (kind == EventKind::regroup || kind == EventKind::loss_rollback) regrouped_ = true;
    if (kind == EventKind::failure) close(true);
    if (kind == EventKind::end) close(false);
  }
  int64_t failures() const { return failures_; }
  double observed_s() const { return observed_s_ + (open_ ? last_s_ - began_s_ : 0); }

 private:
  void close(bool failed) {
    if (!open_) return;
    open_ = replaced_ = false;
    observed_s_ += last_s_ - began_s_;
    failures_ += failed && up_;
  }
  bool open_ = false, up_ = false, regrouped_ = false, replaced_ = false;
  double began_s_ = 0, last_s_ = 0, observed_s_ = 0;
  int64_t failures_ = 0;
};

}  // namespace

PastSaves past_saves(const std::vector<std::string>& lines) {
  Attempts attempts;
  PastSaves past;
  for (const std::string& line : lines) {
    const Json event = try_parse_json(line);
    const auto kind = event_kind_of(event);
    if (!kind) continue;
    const auto time = event.find("t");
    if (time == event.end() || !time->is_number()) continue;
    attempts.take(*kind, time->get<double>());
    if (*kind != EventKind::interval) continue;
    try {
      replace_interval(past.intervals, record_of<SaveInterval>(event));
    } catch (const BadRecord&) {  // of another version
    }
  }
  const auto of_tier = [&](SaveTier tier) {
    return SaveHistory{.tier = tier, .failures = attempts.failures(), .observed_s = attempts.observed_s()};
  };
  past.tiers.push_back(of_tier(SaveTier::directory));
  for (const SaveInterval& interval : past.intervals) {
    if (interval.tier != SaveTier::directory) past.tiers.push_back(of_tier(interval.tier));
    SaveHistory& history = interval.tier == SaveTier::directory ? past.tiers.front() : past.tiers.back();
    history.cost_s = interval.cost_s;
    history.write_s = interval.write_s;
    history.step_s = interval.step_s;
  }
  return past;
}

}  // namespace trainctl
