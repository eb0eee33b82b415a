// RunAlerts: the alerts of a run under a supervisor. It gives the rules what is recorded of the run, sends
// what they decide, and records what came of it: an alert that was sent, or given up, is not sent again
// after a restart. One thread, which waits for nothing but finish().
#pragma once
#include <string>

#include "runtime/supervise/alerts/alert_rules.h"
#include "runtime/supervise/alerts/alert_sender.h"
#include "runtime/supervise/loop/supervised_run.h"

namespace trainctl {

class RunAlerts {
 public:
  explicit RunAlerts(SupervisedRun& run);
  void event(EventKind kind, const std::string& json);
  void step(const StepLine& line);
  void turn();
  /// The run has ended, and its end is recorded: waits for what is being sent, at most
  /// observability.alerts.timeout_seconds.
  void finish();

 private:
  void send(std::optional<Alert> alert);
  void record();

  SupervisedRun& run_;
  const AlertsSpec spec_;
  AlertRules rules_;
  AlertSender sender_;
};

}  // namespace trainctl
