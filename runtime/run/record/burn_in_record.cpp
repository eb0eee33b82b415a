#include "runtime/run/record/burn_in_record.h"

#include <fmt/format.h>

#include "runtime/base/ensure.h"
#include "runtime/base/text.h"

namespace trainctl {

BurnInRecord burn_in_record(const std::vector<TestedNode>& tested, const std::vector<RankTest>& ranks) {
  BurnInRecord record;
  size_t wrong = 0;
  for (const TestedNode& node : tested) {
    ENSURE(size_t(node.first + node.count) <= ranks.size(), "ranks {} + {} of {}", node.first, node.count,
           ranks.size());
    NodeTest test{.node = node.name};
    for (int rank = node.first; rank < node.first + node.count; ++rank) {
      const RankTest& result = ranks[size_t(rank)];
      if (test.wrong.empty()) test.wrong = result.wrong;
      if (result.product_s <= test.product_s) continue;
      test.product_s = result.product_s;
      test.place = result.place;
    }
    if (!test.wrong.empty() && wrong++ == 0)
      record.text = fmt::format("burn-in: {} must not be used: {}", node.name, test.wrong);
    record.nodes.push_back(std::move(test));
  }
  if (wrong > 1) record.text += fmt::format(", and {} more", count_of(int64_t(wrong) - 1, "node"));
  if (wrong == 0)
    record.text =
        fmt::format("burn-in: nothing is wrong with {}", count_of(int64_t(record.nodes.size()), "node"));
  return record;
}

}  // namespace trainctl
