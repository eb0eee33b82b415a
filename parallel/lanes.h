// Lanes: the equal parts of the global batch whose gradients are added by a balanced binary tree, in lane
// order. The tree does not depend on how many ranks there are: a rank has a run of neighbouring lanes and
// adds what the tree adds within the run, which leaves one sum for each whole subtree. Pure.
#pragma once
#include <cstddef>
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

/// Where lanes are reduced as soon as they are complete, rank r of `dp` has lane t * dp + r at time t: the
/// lanes of one time are neighbours. If dp does not divide the lanes, the last ranks have none at the last
/// time.
LaneRun lanes_at_time(int lanes, int dp, int time);
inline int times_of_lanes(int lanes, int dp) { return (lanes + dp - 1) / dp; }

/// The most sums that exist at one time while the lanes of a run are added one after another: those of the
/// subtrees before a lane, and the lane itself.
int sums_at_once(LaneRun run);

/// The lanes whose gradients come to one place of a line, at each time. A line may have fewer places
/// than there are dp ranks: dp / places neighbouring ranks then share a place and compute at one time, so
/// that the lanes of all of them come to it; those of one time in the order of the ranks.
///   by_time  as lanes_at_time says; dp divides lanes. Otherwise a rank has those of lanes_of_rank, one after
///            another.
using LaneTimes = std::vector<std::vector<int>>;  // [time]
LaneTimes lanes_in_time(int lanes, int dp, bool by_time, int places, int place);

/// Where sums lie while lanes are added one after another, in any order: a new lane has the lowest level
/// that is free, and two sums that make a node of the tree are added as soon as both are complete, in the
/// level of the left one.
struct LaneLevels {
  struct Addition {
    int into = 0, from = 0;  ///< levels; the left subtree is `into`
  };
  int count = 0;                             ///< the most that are in use at one time
  std::vector<int> of_lane;                  ///< [lane, in the order of LaneTimes]
  std::vector<std::vector<Addition>> after;  ///< [lane, in the order of LaneTimes]
  std::vector<int> left;                     ///< of the sums that are left in the end, in the order of lanes
};
/// together: the lanes of one time grow at the same time, so that each has its level before one is
/// complete. They are complete one after another.
LaneLevels levels_of_lanes(const LaneTimes& times, bool together);

/// Where the sums of an owner lie to whom one time after another brings its lanes' subtrees, already added.
/// The whole tree ends in level 0. Where dp divides lanes, every time brings one subtree.
struct OwnerLevels {
  LaneLevels levels;              ///< of the subtrees of all times, in place of lanes
  std::vector<int> begins = {0};  ///< [times + 1] the first subtree of each time
  int times() const { return int(begins.size()) - 1; }
  int subtrees(int time) const { return begins[std::size_t(time) + 1] - begins[std::size_t(time)]; }
  int most_subtrees() const;
  int level(int time, int subtree) const {
    return levels.of_lane[std::size_t(begins[std::size_t(time)] + subtree)];
  }
  /// After all subtrees of the time have come.
  const std::vector<LaneLevels::Addition>& after(int time, int subtree) const {
    return levels.after[std::size_t(begins[std::size_t(time)] + subtree)];
  }
};
OwnerLevels owner_levels(int lanes, int dp);

}  // namespace trainctl::parallel
