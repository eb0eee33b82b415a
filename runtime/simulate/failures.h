// The failures of a fleet over a time, drawn from a seed. Pure.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/simulate/fleet_model.h"

namespace trainctl::simulate {

/// Whole nanoseconds: sums are exact, in any order.
using Ns = int64_t;
inline constexpr Ns kNsOfS = 1'000'000'000;
Ns ns_of(double seconds);
inline double seconds_of(Ns ns) { return double(ns) / double(kNsOfS); }

/// What happens to the node at a place of the mesh, whichever node is there at that time. So more spares and
/// other decisions change nothing about what fails when.
struct Failure {
  Ns at = 0;
  int kind = 0;         ///< index in FleetModel::failures
  int place = 0;        ///< of the mesh's nodes at full width
  Ns repair = 0;        ///< until the place is sound again; 0: at once
  Ns found = 0;         ///< of silent: until the wrong numbers are found
  double slowdown = 0;  ///< of slow
};

struct FailureSource {
  int gpus = 1, nodes = 1;  ///< of the mesh
  double rate_times = 1;    ///< all rates of the fleet times this
  uint64_t seed = 1;
};

/// In the order of time. Each kind is a Poisson process of its own; repairs, slowdowns and delays are
/// exponential. With other rates the same failures come sooner or later.
std::vector<Failure> draw_failures(const FleetModel& fleet, const FailureSource& source, Ns end);

}  // namespace trainctl::simulate
