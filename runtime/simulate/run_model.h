// RunModel: all that a simulation must know of a run, from its plan. Pure.
#pragma once
#include <string>
#include <vector>

#include "runtime/plan/report.h"
#include "runtime/simulate/attempt_clock.h"
#include "runtime/spec/parse.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/train/save/save_calendar.h"

namespace trainctl::simulate {

/// Where the state is kept: in the memory of its node, in that of the node's partner, in the run's folder.
struct KeptTier {
  bool is_made = false;
  SaveRule rule;      ///< how its interval is decided
  int64_t given = 0;  ///< its interval in steps, where the spec gives it
  Ns cost = 0;        ///< training waits so long for a save
  Ns safe = 0;        ///< from the end of the step until the save is safe
  Ns load = 0;
};

/// After how many steps is saved to each tier; 0: never (in an answer), not given (in a request).
struct SaveSteps {
  int64_t memory = 0, partner = 0, directory = 0;
};

struct RunModel {
  std::string name;
  std::vector<Width> widths;  ///< widest first
  int tensor = 1;
  int slots = 1;              ///< ranks of a node
  int nodes = 1, spares = 0;  ///< of the mesh; further ones
  int gpus = 1;               ///< of the mesh
  int64_t lanes = 1;
  Ns step_time = 1;  ///< at the full width
  double bubble_share = 0;  ///< of a step: waits in the pipeline
  int64_t tokens_per_step = 0, total_steps = 1;
  KeptTier memory, partner, directory;
  Pauses::Pause evaluation;
  FaultSpec fault;
  double mtbf_s = 0;
  bool mtbf_is_given = false;
  int keep_last = 3;
  int64_t keep_every = 0;
  std::vector<int> partners;  ///< of each place of the mesh; empty: no second copies

  Ns step_time_at(const Width& width) const;
};

struct FleetShape {
  int gpus_of_node = 8;
  int spares = 0;
};

/// Error(kPlan) where the time of a step is not known.
RunModel make_run_model(const ParsedJob& job, const PlanReport& report, const FleetShape& shape);

/// The failures that a tier was needed for, and for how long they were counted; as the run's records say.
struct SeenFailures {
  int64_t memory = 0, partner = 0, directory = 0;
  double observed_s = 0;
};
/// The intervals that SaveCalendar decides at the start of an attempt. `given` ones win.
SaveSteps decide_saves(const RunModel& run, const SeenFailures& seen, const SaveSteps& given);

}  // namespace trainctl::simulate
