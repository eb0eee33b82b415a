// Which nodes of a run are slower than the others, by what a burn-in measured. Pure.
#pragma once
#include <string>
#include <vector>

namespace trainctl {

struct NodeSpeed {
  std::string node;
  double product_s = 0;  ///< of its slowest core or GPU, for one product; 0: not measured
};
struct SlowNode {
  std::string node;
  double times_median = 1;  ///< its time as a multiple of the median
  int nodes = 0;            ///< of which that is the median
};

/// Two nodes that are alike differ by less: each time is the shortest of many, which is within 5 % of the
/// truth, and 1.05 / 0.95 is 1.11. A core that takes 30 % longer shows as 1.18 at least.
inline constexpr double kSlowTimesMedian = 1.15;
/// Fewer nodes have no median that says anything.
inline constexpr int kLeastForSpeed = 3;

/// Those that take more than kSlowTimesMedian times the median over all nodes that were measured.
std::vector<SlowNode> slow_nodes(const std::vector<NodeSpeed>& nodes);

}  // namespace trainctl
