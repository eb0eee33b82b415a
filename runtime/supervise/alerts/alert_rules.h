// AlertRules decides of what people hear: from events, steps, the time and the disk of a run to alerts. Each
// cause once: the keys of those that were sent before a restart are given. A limit that is passed alerts once
// while it lasts, and again once it was kept for an hour. Pure; one thread.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/supervise/alerts/alert.h"
#include "runtime/train/control/event_kind.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {

class AlertRules {
 public:
  struct Run {
    std::string run_id, directory, host;
    std::string name;  ///< in commands
  };
  /// `sent`: the keys of earlier supervisors of the run.
  AlertRules(const AlertsSpec& spec, Run run, std::set<std::string> sent);

  /// `json`: the fields of the event.
  std::optional<Alert> event(EventKind kind, const std::string& json, double now_s);
  std::vector<Alert> step(const StepLine& line, double now_s);
  /// Call it now and then. `trains`: an attempt is under way that is not asked to stop.
  std::vector<Alert> tick(bool trains, double now_s);
  /// `free`: the share of a file system that is free. `path`: a folder there.
  std::optional<Alert> disk(double free, const std::string& path, double now_s);

  /// Steps over which the rate is taken. Goodput is taken over this time, and over as many steps at least.
  static constexpr size_t kRateSteps = 20, kGoodputSteps = 10;
  static constexpr double kGoodputS = 3600;
  /// A limit that was not passed for so long is kept again. A value near its limit passes it now and then.
  static constexpr double kKeptS = 3600;

 private:
  void forget_old_steps(double now_s);
  std::optional<Alert> too_little_goodput(double now_s);
  std::optional<Alert> make(AlertCause cause, const std::string& key, std::string text, double now_s);
  std::optional<Alert> limit(AlertCause cause, const std::string& key, bool is_passed, std::string text,
                             double now_s);

  const AlertsSpec spec_;
  const Run run_;
  std::set<std::string> sent_;
  std::map<std::string, double> passed_s_;  ///< by key: when a limit was passed last
  int64_t step_ = 0;
  bool failed_ = false;                            ///< the last attempt
  std::optional<double> moved_s_;                  ///< when a step last ended, or an attempt began
  std::deque<std::pair<double, int64_t>> recent_;  ///< when steps ended, and the tokens so far
  std::deque<std::pair<double, double>> counted_;  ///< when steps that count ended, and how long they took
  int64_t furthest_ = -1;                          ///< step; one up to it is trained again
};

/// The keys of the alerts that these events record as sent, or given up. A run that has failed or finished
/// and is resumed begins without any: people hear of its next end, too. Pure.
std::set<std::string> sent_keys(const std::vector<std::string>& events);

}  // namespace trainctl
