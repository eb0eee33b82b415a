// The result of a simulation for people and as JSON. Pure.
#pragma once
#include <optional>
#include <string>

#include "runtime/base/json.h"
#include "runtime/plan/power.h"
#include "runtime/plan/price.h"
#include "runtime/simulate/survey.h"

namespace trainctl::simulate {

struct SimulationReport {
  RunModel run;
  FleetModel fleet;
  uint64_t seed = 1;
  int fleet_gpus = 1;  ///< with those of spare nodes
  int gpus_of_node = 8;
  SimulatedRun result;
  std::optional<Survey> survey;
  std::optional<Price> price;
  std::optional<Power> power;

  double tokens() const { return double(result.steps) * double(run.tokens_per_step); }
  /// GPU hours of the whole fleet.
  double gpu_hours() const;
  /// Of the mesh's GPUs, at their limit all the time: what spare ones draw is not known. NaN: no power is.
  double kwh() const;
  /// Days for all tokens of the job, at the pace of the simulated time; NaN: no step was made.
  double days_for_job() const;
  double cost_per_trillion_tokens() const;  ///< NaN: there is no price, or no step was made
  double kwh_per_trillion_tokens() const;   ///< NaN: no power is known, or no step was made
};

std::string render_simulation(const SimulationReport& report);
/// A result of kind `simulation` (runtime/observe/schemas).
OrderedJson simulation_json(const SimulationReport& report);

}  // namespace trainctl::simulate
