// Lanes: the equal parts of the global batch whose gradients are added by a balanced binary tree, in lane
// order. The tree does not depend on how many ranks there are: a rank has a run of neighbouring lanes and
// adds what the tree adds within the run, which leaves one sum for each whole subtree. Pure.
#pragma once
#include <vector>

namespace trainctl::parallel {

/// Lanes [begin, end).
struct LaneRun {
  int begin = 0, end = 1;
  int count() const { return end - begin; }
  bool operator==(const LaneRun&) const = default;
};

/// The lanes of dp rank `rank` of `dp`, 1 <= dp <= lanes. Runs differ by at most one lane, and rank 0 has a
/// longest one.
LaneRun lanes_of_rank(int lanes, int dp, int rank);

/// The whole subtrees of the tree that a run consists of, in order. A run of lanes / dp lanes, where dp
/// divides lanes, is one; so is one lane; any other run is at most 2 log2(its count).
std::vector<LaneRun> subtrees_of(LaneRun run);
/// How many they are.
int subtree_count(LaneRun run);

/// The most sums that exist at one time while the lanes of a run are added one after another: those of the
/// subtrees before a lane, and the lane itself.
int sums_at_once(LaneRun run);

}  // namespace trainctl::parallel
