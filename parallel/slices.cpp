#include "parallel/slices.h"

#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

namespace {

constexpr int64_t kSliceAlign = 16;

}  // namespace

Elements slice_of(int64_t elements, int rank, int ranks) {
  const auto begin = [&](int64_t r) {
    return r == ranks ? elements : elements * r / ranks / kSliceAlign * kSliceAlign;
  };
  return {begin(rank), begin(rank + 1)};
}

int64_t most_of_a_slice(int64_t elements, int ranks) {
  return elements == 0 ? 0 : (elements + ranks - 1) / ranks + kSliceAlign;
}

TreeAdditions additions_of(const std::vector<LaneRun>& subtrees) {
  struct Sum {
    LaneRun lanes;
    int at;
  };
  TreeAdditions result;
  std::vector<Sum> open;  // neighbouring subtrees that have not met their sibling yet
  for (int i = 0; i < int(subtrees.size()); ++i) {
    open.push_back({subtrees[size_t(i)], i});
    while (open.size() > 1) {
      Sum &left = open[open.size() - 2], right = open.back();
      const int lanes = left.lanes.count();
      if (right.lanes.count() != lanes || left.lanes.begin % (2 * lanes) != 0) break;
      result.additions.push_back({left.at, right.at});
      left.lanes.end = right.lanes.end;
      open.pop_back();
    }
  }
  for (const Sum& sum : open) result.left.push_back(sum.at);
  return result;
}

}  // namespace trainctl::parallel::sharding
