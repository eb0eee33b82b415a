// A dispute of replicas: ranks that hold the same part of the state, and held different bits after a step,
// without a majority. The run goes back and computes the steps again; then the digest of that step says which
// replica was wrong. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/record_fields.h"

namespace trainctl {

struct DisputedReplica {
  int rank = 0;      ///< in the attempt that found it
  std::string node;  ///< of that rank; "": the run has one
  std::string digest;
  bool operator==(const DisputedReplica&) const = default;
  static void fields(auto& f, auto& r) {
    f("rank", r.rank);
    f.when(!r.node.empty(), "node", r.node);
    f("digest", r.digest);
  }
};

struct ReplicaDispute {
  int64_t step = 0;
  std::string part;  ///< a number of what the replicas hold, the same in each attempt on a mesh
  std::vector<DisputedReplica> replicas;
  bool operator==(const ReplicaDispute&) const = default;
  static void fields(auto& f, auto& r) {
    f("step", r.step);
    f("part", r.part);
    f("replicas", r.replicas);
  }
};

struct DisputeVerdict {
  std::vector<DisputedReplica> wrong;  ///< empty: it is not decided
  std::string text;                    ///< one sentence
  /// Whether a digest is among the results. Else the step was computed from another state, or otherwise: that
  /// says nothing, and the dispute stays open.
  bool is_answered = false;
};
/// recomputed: the digests of the same part after the same step, of the replicas that computed it again.
/// Right is the one digest that both have.
DisputeVerdict settle(const ReplicaDispute& dispute, const std::vector<std::string>& recomputed);

/// Those of a run's events, oldest first, that were not settled since. Of one step and part it is the newest.
std::vector<ReplicaDispute> open_disputes(const std::vector<std::string>& events);

}  // namespace trainctl
