#include "parallel/lanes.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <utility>

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

LaneRun lanes_at_time(int lanes, int dp, int time) {
  return {std::min(lanes, time * dp), std::min(lanes, (time + 1) * dp)};
}

int sums_at_once(LaneRun run) {
  int most = 0;
  for (int lane = run.begin; lane < run.end; ++lane)
    most = std::max(most, subtree_count({run.begin, lane}) + 1);
  return most;
}

LaneTimes lanes_in_time(int lanes, int dp, bool by_time, int places, int place) {
  ENSURE(dp % places == 0 && place < places && (!by_time || lanes % dp == 0),
         "{} lanes of {} ranks, place {} of {}", lanes, dp, place, places);
  const int sharing = dp / places, first = place * sharing;
  LaneTimes times;
  for (int rank = first; rank < first + sharing; ++rank) {
    LaneRun run = by_time ? LaneRun{rank, lanes} : lanes_of_rank(lanes, dp, rank);
    for (size_t time = 0; run.begin < run.end; ++time, run.begin += by_time ? dp : 1) {
      if (time == times.size()) times.emplace_back();
      times[time].push_back(run.begin);
    }
  }
  return times;
}

namespace {

class LevelSearch {
 public:
  void take_level() {
    const auto free = std::find(taken_.begin(), taken_.end(), false) - taken_.begin();
    if (size_t(free) == taken_.size()) taken_.push_back(false);
    taken_[size_t(free)] = true;
    levels_.of_lane.push_back(int(free));
  }
  /// The next subtree, whose level is taken, is complete: a lane, or several.
  void add(int first_lane, int lanes = 1) {
    auto [left, fresh] = sums_.emplace(first_lane, Sum{lanes, levels_.of_lane[levels_.after.size()]});
    ENSURE(fresh, "lane {} comes twice", first_lane);
    levels_.after.emplace_back();
    for (;;) {
      auto right = sums_.find(left->first ^ left->second.lanes);
      if (right == sums_.end() || right->second.lanes != left->second.lanes) return;
      if (right->first < left->first) std::swap(left, right);
      levels_.after.back().push_back({left->second.level, right->second.level});
      taken_[size_t(right->second.level)] = false;
      left->second.lanes *= 2;
      sums_.erase(right);
    }
  }
  LaneLevels result() {
    levels_.count = int(taken_.size());
    for (const auto& [lane, sum] : sums_) levels_.left.push_back(sum.level);
    return std::move(levels_);
  }

 private:
  struct Sum {
    int lanes = 1, level = 0;
  };
  std::map<int, Sum> sums_;  // by their first lanes
  std::vector<bool> taken_;
  LaneLevels levels_;
};

}  // namespace

LaneLevels levels_of_lanes(const LaneTimes& times, bool together) {
  LevelSearch search;
  for (const std::vector<int>& lanes : times) {
    if (together)
      for (size_t i = 0; i < lanes.size(); ++i) search.take_level();
    for (const int lane : lanes) {
      if (!together) search.take_level();
      search.add(lane);
    }
  }
  return search.result();
}

int OwnerLevels::most_subtrees() const {
  int most = 0;
  for (int time = 0; time < times(); ++time) most = std::max(most, subtrees(time));
  return most;
}

OwnerLevels owner_levels(int lanes, int dp) {
  OwnerLevels owner;
  LevelSearch search;
  for (int time = 0; time < times_of_lanes(lanes, dp); ++time) {
    const std::vector<LaneRun> subtrees = subtrees_of(lanes_at_time(lanes, dp, time));
    for (size_t i = 0; i < subtrees.size(); ++i) search.take_level();
    for (const LaneRun& subtree : subtrees) search.add(subtree.begin, subtree.count());
    owner.begins.push_back(owner.begins.back() + int(subtrees.size()));
  }
  owner.levels = search.result();
  return owner;
}

}  // namespace trainctl::parallel
