// The mesh: the position of each world rank on the axes tp, cp, dp, pp.
//
// Invariant: tp * cp * dp * pp == world_size. Rank order, fastest first: tp, cp, dp, pp, so that a tensor group is
// neighbours on one node. Pure arithmetic; safe from any thread.
#pragma once
#include <vector>

namespace trainctl::parallel {

enum class Axis { tp, cp, dp, pp };

/// Sizes of the axes, or a rank's position on them.
struct MeshShape {
  int tp = 1, cp = 1, dp = 1, pp = 1;
  int world_size() const { return tp * cp * dp * pp; }
};

struct MeshPosition {
  int tp = 0, cp = 0, dp = 0, pp = 0;
};

/// Position of `rank` in [0, world_size).
MeshPosition position_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshPosition& position);

/// The ranks that share every coordinate but `axis` with `rank`, in order of that coordinate (so its index in
/// the result is its coordinate on the axis).
std::vector<int> group_of(const MeshShape& shape, int rank, Axis axis);

/// One rank's group along an axis, without the list of its members.
struct MeshGroup {
  Axis axis = Axis::tp;
  int size = 1, rank = 0;     ///< rank: of this one within the group
  int first = 0, stride = 1;  ///< world ranks of the group: first, first + stride, ...
};
MeshGroup mesh_group(const MeshShape& shape, const MeshPosition& at, Axis axis);

}  // namespace trainctl::parallel
