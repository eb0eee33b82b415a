#include "parallel/lanes.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>

#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

/// Of the run's first subtree: the largest that begins where the run begins and ends within it.
int first_subtree(LaneRun run) {
  const unsigned fits = std::bit_floor(unsigned(run.count()));
  const unsigned aligned =
      unsigned(run.begin) & (0u - unsigned(run.begin));  // 0 has no lowest bit: any size fits
  return int(run.begin == 0 ? fits : std::min(fits, aligned));
}

}  // namespace

LaneRun lanes_of_rank(int lanes, int dp, int rank) {
  ENSURE(std::has_single_bit(unsigned(lanes)) && dp >= 1 && dp <= lanes && rank >= 0 && rank < dp,
         "{} lanes, rank {} of {}", lanes, rank, dp);
  const auto begin = [&](int64_t r) { return int((r * lanes + dp - 1) / dp); };
  return {begin(rank), begin(rank + 1)};
}

std::vector<LaneRun> subtrees_of(LaneRun run) {
  std::vector<LaneRun> subtrees;
  while (run.begin < run.end) {
    const int next = run.begin + first_subtree(run);
    subtrees.push_back({run.begin, next});
    run.begin = next;
  }
  return subtrees;
}

int subtree_count(LaneRun run) {
  int count = 0;
  for (; run.begin < run.end; ++count) run.begin += first_subtree(run);
  return count;
}

int sums_at_once(LaneRun run) {
  int most = 0;
  for (int lane = run.begin; lane < run.end; ++lane)
    most = std::max(most, subtree_count({run.begin, lane}) + 1);
  return most;
}

std::vector<int> lanes_in_time(int lanes, int dp, bool by_time, int places, int place) {
  ENSURE(dp % places == 0 && place < places && (!by_time || lanes % dp == 0),
         "{} lanes of {} ranks, place {} of {}", lanes, dp, place, places);
  const int sharing = dp / places, first = place * sharing;
  std::vector<int> result;
  const int times = by_time ? lanes / dp : (lanes + dp - 1) / dp;
  for (int time = 0; time < times; ++time)
    for (int rank = first; rank < first + sharing; ++rank) {
      const LaneRun run = by_time ? LaneRun{rank, lanes} : lanes_of_rank(lanes, dp, rank);
      const int lane = run.begin + time * (by_time ? dp : 1);
      if (lane < run.end) result.push_back(lane);
    }
  return result;
}

LaneLevels levels_of_lanes(const std::vector<int>& lanes) {
  struct Sum {
    int lanes = 1, level = 0;
  };
  std::map<int, Sum> sums;  // by their first lanes
  std::vector<bool> taken;
  LaneLevels result;
  for (const int lane : lanes) {
    const auto level = std::find(taken.begin(), taken.end(), false) - taken.begin();
    if (size_t(level) == taken.size()) taken.push_back(false);
    taken[size_t(level)] = true;
    result.of_lane.push_back(int(level));
    result.after.emplace_back();
    auto [left, fresh] = sums.emplace(lane, Sum{1, int(level)});
    ENSURE(fresh, "lane {} comes twice", lane);
    for (;;) {
      auto right = sums.find(left->first ^ left->second.lanes);
      if (right == sums.end() || right->second.lanes != left->second.lanes) break;
      if (right->first < left->first) std::swap(left, right);
      result.after.back().push_back({left->second.level, right->second.level});
      taken[size_t(right->second.level)] = false;
      left->second.lanes *= 2;
      sums.erase(right);
    }
  }
  result.count = int(taken.size());
  for (const auto& [lane, sum] : sums) result.left.push_back(sum.level);
  return result;
}

}  // namespace trainctl::parallel
