// The communicators of a rank's groups in the mesh, and what ranks exchange along them.
#pragma once
#include <memory>
#include <vector>

#include "runtime/model/executor.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/train/measure/rank_spread.h"

namespace trainctl {

/// Split from the world. Each may have only one member.
struct MeshCommunicators {
  std::unique_ptr<parallel::Communicator> tp, dp, pp, tied;  ///< tied: first and last stage, or null
  PipelineEdges edges;
  template <typename Each>
  void for_each(Each each) const {
    for (const auto* axis : {&tp, &dp, &pp, &tied})
      if (*axis) each(**axis);
    edges.for_each(each);
  }
  void set_deadline(double seconds) const;
  /// Throws the error of a message that was cut off: the stream went on with whatever memory held.
  void check() const;
  /// Seconds that this rank has waited for peers so far.
  double waited_s() const;
  /// Adds vectors of which each entry is known to one rank (and zero elsewhere, so exact in any order): an axis
  /// at a time, so that no rank exchanges messages with all others. Collective.
  void sum(std::vector<double>& values) const;
};

/// The groups and edges of a rank's plan. tied: the model ties its embedding. Collective.
MeshCommunicators split_mesh(const RankGroups& groups, parallel::Communicator& world, bool tied);

/// Gathers the times of all ranks to rank 0, in the order of world ranks; empty on other ranks. Gathers one
/// axis at a time, so that no rank exchanges messages with all others. Collective.
std::vector<RankTimes> gather_times(const parallel::MeshShape& shape, const MeshCommunicators& comms,
                                    const RankTimes& own);

}  // namespace trainctl
