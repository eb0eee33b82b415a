// Small runs and fleets for the tests of the simulator.
#pragma once
#include "runtime/simulate/survey.h"

namespace trainctl::test {

/// A run on four nodes of eight ranks, with steps of one second, that keeps no copies and never saves.
inline simulate::RunModel small_run() {
  simulate::RunModel run{.name = "small",
                         .widths = {{4, 32}, {3, 24}, {2, 16}, {1, 8}},
                         .tensor = 8,
                         .slots = 8,
                         .nodes = 4,
                         .gpus = 32,
                         .lanes = 4,
                         .step_time = simulate::kNsOfS,
                         .tokens_per_step = 1000,
                         .total_steps = int64_t{1} << 40,
                         .mtbf_s = 1e4};
  run.fault.max_restarts = 1 << 20;
  return run;
}

/// The same with all tiers: copies in memory, in the partner's memory, and checkpoints.
inline simulate::RunModel copying_run() {
  using simulate::kNsOfS;
  simulate::RunModel run = small_run();
  run.memory = {.is_made = true, .given = 1, .safe = kNsOfS / 2, .load = kNsOfS};
  run.partner = {.is_made = true, .given = 4, .safe = 2 * kNsOfS, .load = 2 * kNsOfS};
  run.directory = {
      .is_made = true, .given = 100, .cost = kNsOfS / 2, .safe = 10 * kNsOfS, .load = 20 * kNsOfS};
  run.partners = {2, 3, 0, 1};
  return run;
}

/// A fleet in which `kinds` fail; rates are those of 32 GPUs in four nodes, in events a day.
inline simulate::FleetModel small_fleet(std::vector<simulate::FailureKind> kinds) {
  simulate::FleetModel fleet{.name = "small", .failures = std::move(kinds)};
  fleet.observed = {32, 8, 86400};
  return fleet;
}

inline simulate::SimulatedRun simulated(const simulate::RunModel& run, const simulate::FleetModel& fleet,
                                        double days, uint64_t seed = 1, double rate = 1,
                                        simulate::SimulationOptions options = {}) {
  options.end = simulate::ns_of(days * 86400);
  const auto failures = simulate::draw_failures(
      fleet, {.gpus = run.gpus, .nodes = run.nodes, .rate_times = rate, .seed = seed}, options.end);
  return simulate::simulate(run, fleet, failures, options);
}

}  // namespace trainctl::test
