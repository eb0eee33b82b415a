// RunAttempts runs the attempts of a run one after another: each on the nodes that Recovery has chosen,
// started by mpirun or by the agents, or attached to. It reports to Recovery how an attempt goes and how it
// has ended. One thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervise/attempt/attempt.h"
#include "runtime/supervise/decide/verified_state.h"
#include "runtime/supervise/loop/attempt_times.h"
#include "runtime/supervise/loop/loss_watch.h"
#include "runtime/supervise/loop/run_end.h"
#include "runtime/supervise/loop/run_epochs.h"
#include "runtime/supervise/loop/run_fleet.h"
#include "runtime/supervise/loop/run_quarantine.h"
#include "runtime/supervise/loop/starter.h"

namespace trainctl {

/// What Recovery needs to know of an attempt that ended with `verdict`. `regrouped`: AttemptHooks::regroup
/// stopped it. The caller fills in the node.
AttemptEnd end_of(const Verdict& verdict, bool regrouped);
/// The decision by which the supervisor before began the attempt of `file`. `widths`: those of the job.
/// `parent_checkpoint`: where the run began, if not at step 0.
StartAttempt start_of(const AttemptFile& file, const std::vector<Width>& widths,
                      const std::string& parent_checkpoint = "");

/// The line for the console on where the second copies of an attempt lie; "": there is nothing new.
/// `weakness`: of this attempt; `known`: what was said of those before, which the call updates.
std::string second_copies_note(const Problem& weakness, std::string& known);

class RunAttempts {
 public:
  /// The parts of the supervisor that an attempt uses. They must outlive this object.
  struct Parts {
    Recovery& recovery;
    RunSource& source;
    RunCheckpoints& checkpoints;
    RunFleet& fleet;
    RunQuarantine& quarantine;
    RunEnd& end;
    LossWatch& loss;
  };
  RunAttempts(SupervisedRun& run, const Parts& parts);

  /// Runs the attempt to its end. If its nodes do not reach the state in memory from which it was to begin,
  /// it does not start, and Recovery is informed. Error(kPreflight) if its ranks do not fit on its nodes.
  void begin(const StartAttempt& start, StopSignals& signals);
  /// Runs the attempt plan.attach, whose ranks run already, to its end.
  void attach(StopSignals& signals);
  /// Where a rank of the newest attempt computed wrongly, what all of them trained since the last check is
  /// not to be trusted: the next attempt begins before it. Returns whether that is so.
  bool doubt_state();
  /// No state of step `at_most` or before is left. Where that was verified, an event says what follows.
  void not_gone_back(int64_t at_most);

  /// How the last attempt ended.
  struct Last {
    Verdict verdict;
    std::string failure_folder;  ///< of its records, if it failed
    bool went_back = false;      ///< the run goes on from an earlier state
  };
  const std::optional<Last>& last() const { return last_; }
  /// The nodes of the attempt that runs, or ran last.
  const std::vector<AttemptPlan::Node>& places() const { return places_; }

 private:
  Starter& starter();
  AttemptFacts facts(const StartAttempt& start) const;
  AttemptHooks hooks();
  void progressed(int64_t step);
  void run(const StartAttempt& start, AttemptPlan plan, StopSignals& signals);
  void ended(const AttemptResult& result, bool by_pmix);
  bool went_back(const AttemptResult& result);

  SupervisedRun& run_;
  const Parts parts_;
  RunEpochs epochs_;
  AttemptTimes times_;
  std::optional<Starter> starter_;
  std::vector<AttemptPlan::Node> places_;
  std::optional<Last> last_;
  std::optional<BackToVerified> doubt_;  ///< of the newest attempt, until the next one begins
  std::string known_weakness_;       ///< of the places of second copies
  bool keeps_other_meshes_ = false;  ///< the memory of the nodes holds states of other numbers of ranks
};

}  // namespace trainctl
