// AlertSender sends alerts to a webhook and a command, and looks how much of a disk is free, all on a
// thread of its own: the loop that uses it waits for nothing, and a server, a program or a disk that hangs
// costs the run nothing. One thread calls it.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/problem.h"
#include "runtime/supervise/alerts/alert.h"

namespace trainctl {

class AlertSender {
 public:
  /// Alerts that wait at one time; one more is given up at once.
  static constexpr size_t kMostWaiting = 32;

  struct Options {
    std::string webhook;
    std::vector<std::string> command;
    double timeout_s = 10;  ///< of one try
    int tries = 3;
    double pause_s = 1;                ///< before the second try; then twice as long each time
    std::vector<std::string> folders;  ///< whose disks are looked at
    double disk_interval_s = 30;
  };
  /// The thread begins with the first alert, or at once where there are folders.
  explicit AlertSender(Options options);
  /// A thread that hangs is left to itself.
  ~AlertSender();
  AlertSender(const AlertSender&) = delete;
  AlertSender& operator=(const AlertSender&) = delete;

  void send(Alert alert);

  struct Outcome {
    Alert alert;
    Problem problem;  ///< none: it was sent everywhere
  };
  /// The outcomes since the last call.
  std::vector<Outcome> take();
  /// The folder with the least free share of its disk, of the newest look; nullopt: none yet.
  std::optional<std::pair<double, std::string>> least_free() const;
  /// Waits for what is under way, at most `limit_s` and without further tries. What is left then has a
  /// problem in take().
  void finish(double limit_s);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Runs the command of an alert and waits for its end, at most `timeout_s` and until `is_given_up`; then it and
/// its children are killed. None: it ended with status 0.
Problem run_alert_command(const std::vector<std::string>& command, const Alert& alert, double timeout_s,
                          const std::function<bool()>& is_given_up = {});

}  // namespace trainctl
