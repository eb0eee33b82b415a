// Simulation: a run in the simulator, and what is known of it. simulator.cpp has what happens between attempts,
// simulated_attempt.cpp an attempt.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/simulate/detection.h"
#include "runtime/simulate/fleet_nodes.h"
#include "runtime/simulate/simulator.h"

namespace trainctl::simulate {

/// A time in which something is not as usual.
struct Spell {
  Ns begin = 0, end = 0;
  double slowdown = 0;
  int kind = 0;
};

class Simulation {
 public:
  Simulation(const RunModel& run, const FleetModel& fleet, std::span<const Failure> failures,
             const SimulationOptions& options)
      : run_(run),
        fleet_(fleet),
        failures_(failures),
        options_(options),
        nodes_(run, fleet, failures, options.joins_sound_nodes),
        kept_({run.partners, run.keep_last, run.keep_every}),
        crash_(detect(Effect::crash, run.fault)),
        device_(detect(Effect::device, run.fault)),
        hang_(detect(Effect::hang, run.fault)),
        node_(detect(Effect::node, run.fault)) {
    result_.kinds.resize(fleet.failures.size());
    charged_ = &result_.begin;
  }
  SimulatedRun run();

 private:
  /// What is loaded next. A person takes the wrong numbers rather than to begin again.
  KeptStates::Choice choose(const FindCheckpoint& find);
  void supervise();
  void decide(const StartAttempt& start) { attempt(start); }
  void decide(const FindCheckpoint& find);
  void decide(const Wait& wait) { idle(Cause::idle, std::min(ns_of(wait.until_s) + 1, next_event())); }
  void decide(const RequeueJob& requeue) { give_up(requeue.why); }
  void decide(const StopRun& stop) { give_up(stop.why); }
  void give_up(const std::string& why);

  // ---- time
  double now_s() const { return seconds_of(now_); }
  void spend(Cause cause, Ns until);
  /// Time in which no attempt runs; nodes fail and return all the same.
  void idle(Cause cause, Ns until);
  Ns next_failure() const { return next_ < failures_.size() ? failures_[next_].at : kNeverNs; }
  Ns next_event() const { return std::min(next_failure(), nodes_.next_return()); }
  void take_idle_event();

  // ---- an attempt
  struct Attempt {
    Ns up = 0;  ///< all ranks are there
    AttemptClock clock;
    Ns regroup_at = kNeverNs;
    bool over = false;
  };
  void attempt(const StartAttempt& start);
  void go_on(Attempt& attempt);
  void strike(Attempt& attempt, const Failure& failure);
  struct Wrong;
  void find_wrong(Attempt& attempt, const Wrong& wrong);
  void fail(Attempt& attempt, Ns at, int kind, const std::string& node, const std::vector<int>& lost_places,
            Ns repair);
  void regroup(Attempt& attempt);
  /// The parts of the attempt until `at`; `steps`: finished by then.
  void account(const Attempt& attempt, Ns at, int64_t steps);
  void keep(const Attempt& attempt, Ns at, int64_t steps);
  void lose_steps(int64_t step);
  void put_out();
  void node_returns(Attempt* attempt);
  Ns paced(const Width& width) const;
  Ns safe_of_directory(Ns from) const;

  const RunModel& run_;
  const FleetModel& fleet_;
  std::span<const Failure> failures_;
  const SimulationOptions& options_;
  FleetNodes nodes_;
  KeptStates kept_;
  /// Of a failure that ends an attempt.
  const Detection& detection_of(Effect effect) const {
    return effect == Effect::node     ? node_
           : effect == Effect::hang   ? hang_
           : effect == Effect::device ? device_
                                      : crash_;
  }
  Detection crash_, device_, hang_, node_;
  std::optional<Recovery> recovery_;
  SimulatedRun result_;
  KindCost* charged_;
  size_t next_ = 0;             ///< of failures_
  Ns now_ = 0, accounted_ = 0;  ///< an attempt's time gets its causes when it ends
  Width width_;
  int64_t steps_ = 0;  ///< of the run's present line
  LoadFrom load_ = LoadFrom::nothing;
  SeenFailures seen_;
  bool has_failed_ = false;  ///< the last attempt
  uint64_t epoch_ = 0;
  std::vector<Spell> slow_, outages_;
  /// Wrong numbers that are not found yet.
  struct Wrong {
    int64_t step = 0;  ///< the last good one
    Ns found = 0, repair = 0;
    int kind = 0, place = 0;
  };
  std::vector<Wrong> wrong_;
  std::optional<int64_t> at_most_;  ///< for the next load
  /// Steps that count so far, by pace.
  struct Done {
    int64_t after = 0, upto = 0;
    Ns step_time = 0, wide_time = 0;  ///< wide_time: at the full width
  };
  std::vector<Done> done_;
};

}  // namespace trainctl::simulate
