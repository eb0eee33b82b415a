// LossWatch: the loss monitor of a run under a supervisor. It gives the monitor each step that is recorded,
// writes down what it finds, decides by observability.loss_monitor.policy, and says whether the run has to go
// back. One thread.
//
//   a spike -> the decision is durable in loss.json -> the attempt is ended at once -> the newest state
//   before the spike is searched -> an attempt begins with the remedies in its attempt.json: the decision is applied
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/problem.h"
#include "runtime/run/record/loss_monitor.h"
#include "runtime/run/record/loss_record.h"
#include "runtime/supervise/loop/supervised_run.h"

namespace trainctl {

class LossWatch {
 public:
  /// Reads the record. A decision that no attempt has begun with is pending from the beginning.
  ///   remedies   those of the newest attempt
  LossWatch(SupervisedRun& run, const Remedies& remedies);
  /// Gives the monitor the recorded steps that it can remember. What is found again is known; what the
  /// supervisor before had not come to say, or to decide, is new.
  void replay();

  void step(const StepLine& line);
  /// An attempt begins with remedies(), after a state of `step` and without later lines in the records.
  ///   loads   whether it loads a state
  void begin(int64_t step, bool loads);

  struct GoBack {
    int64_t at_most = 0;           ///< a state of this step or before
    bool may_begin_again = false;  ///< the run never had a checkpoint so early: it may begin at its start
    std::string why;
    /// One sentence: why, and how far back from the newest recorded step.
    std::string text(int64_t newest_step) const;
  };
  /// The decision that is not applied yet; nullopt: there is none.
  const std::optional<GoBack>& pending() const { return pending_; }
  /// There is no such state: the decision is taken back, and the run goes on as it is.
  void withdraw();
  /// Of all decisions.
  Remedies remedies() const { return record_.remedies(); }
  /// Error(kDiverged): the run has gone back as often as it may, and that was not enough.
  void require_not_spent() const;

 private:
  void found(const LossIncident& incident, int64_t step);
  void decide(const LossIncident& incident);
  void unanswered(const LossIncident& incident, const std::string& why);
  bool has_state_before(int64_t step) const;
  bool never_saved_before(int64_t step) const;
  void look_for_pending();
  void show() const;

  SupervisedRun& run_;
  const LossMonitorSpec spec_;
  const int64_t global_sequences_;
  LossMonitor monitor_;
  LossRecord record_;
  int64_t applied_ = 0;              ///< so many of its decisions
  int64_t decided_from_ = 0;         ///< what was found up to this step was decided by earlier attempts
  std::vector<LossIncident> known_;  ///< with an event
  Problem spent_ = Problem::none();
  std::optional<GoBack> pending_;
};

}  // namespace trainctl
