#include "runtime/supervise/decide/node_speed.h"

#include <algorithm>
#include <cstddef>

namespace trainctl {

std::vector<SlowNode> slow_nodes(const std::vector<NodeSpeed>& nodes) {
  std::vector<double> times;
  for (const NodeSpeed& node : nodes)
    if (node.product_s > 0) times.push_back(node.product_s);
  if (int(times.size()) < kLeastForSpeed) return {};
  // Of an even number the faster of the two in the middle.
  const auto median = times.begin() + std::ptrdiff_t((times.size() - 1) / 2);
  std::nth_element(times.begin(), median, times.end());
  std::vector<SlowNode> slow;
  for (const NodeSpeed& node : nodes)
    if (node.product_s > kSlowTimesMedian * *median)
      slow.push_back({node.node, node.product_s / *median, int(times.size())});
  return slow;
}

}  // namespace trainctl
