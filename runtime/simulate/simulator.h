// The simulator: a run on a fleet that fails, from event to event. Pure.
#pragma once
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/run/record/time_ledger.h"
#include "runtime/simulate/kept_state.h"
#include "runtime/simulate/run_model.h"

namespace trainctl::simulate {

/// What the wall time is spent on: the causes of a run's ledger. Waits for slow nodes are stragglers.
using Cause = TimeCause;
using TimeByCause = ByCause<Ns>;

struct KindCost {
  int64_t failures = 0;
  int64_t interruptions = 0;  ///< attempts that they ended: a broken place may end several
  Ns cost = 0;                ///< all that they took: the causes from detecting on, and recomputed
};

struct SimulatedRun {
  Ns wall = 0;
  TimeByCause time{};  ///< adds up to `wall`
  Ns slowed = 0;       ///< of the steps that count: by slow nodes
  Ns narrowed = 0;     ///< of the steps that count: by a smaller width
  int64_t steps = 0, lost_steps = 0, attempts = 0, persons = 0;
  int64_t wrong_kept = 0;          ///< wrong numbers that were found when no checkpoint before them was left
  bool is_finished = false;        ///< all steps of the job are done
  std::array<int64_t, 4> loads{};  ///< attempts by LoadFrom
  std::vector<KindCost> kinds;     ///< of FleetModel::failures, in their order
  KindCost begin, regroup;         ///< the first start; attempts that were ended to go on with other nodes
  /// Nodes that are out, and since when; and the smallest width's share of time.
  std::vector<std::pair<Ns, int>> nodes_out;
  SaveSteps saves;  ///< of the last attempt
  std::string end;  ///< why the run gave up, the last time; "": it did not

  double goodput() const {
    return double(time[Cause::training] + time[Cause::bubble] + time[Cause::stragglers]) / double(wall);
  }
  /// Steps that count, as if all were made at the full width and speed.
  double effective(Ns step_time) const { return double(steps) * double(step_time) / double(wall); }
  /// So many spares are enough for that share of the time.
  int spares_for(double share) const;
};

struct SimulationOptions {
  Ns end = 0;
  SaveSteps saves;  ///< that are given
  /// Nodes on which nothing fails are one to Recovery, and spares that cannot be needed are not there, which
  /// is faster. False: each has a name.
  bool joins_sound_nodes = true;
};

/// `failures`: of draw_failures for this run's mesh, until `options.end` at least.
SimulatedRun simulate(const RunModel& run, const FleetModel& fleet, std::span<const Failure> failures,
                      const SimulationOptions& options);

}  // namespace trainctl::simulate
