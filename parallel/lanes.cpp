#include "parallel/lanes.h"

#include <algorithm>
#include <bit>
#include <cstdint>

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

}  // namespace trainctl::parallel
