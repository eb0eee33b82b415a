// Goal: the forward passes of an evaluation keep every stage busy, and need no more memory than two inputs of
// each virtual stage.
// Method: exhaustive over small pipelines: the units of the passes are compared with those of the passes before
// them, and the busy units of each stage with the fewest possible.
#include "parallel/forward_order.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

using namespace trainctl::parallel;

namespace {

/// The most micro-batches that are under way in one unit.
int most_under_way(const VirtualStages& of, int micro_batches) {
  std::map<int64_t, int> in_unit;
  for (int i = 0; i < micro_batches; ++i)
    for (int64_t u = forward_unit(of, 0, i); u <= forward_unit(of, of.count() - 1, i); ++u) ++in_unit[u];
  int most = 0;
  for (const auto& [unit, count] : in_unit) most = std::max(most, count);
  return most;
}

void check_order(const VirtualStages& of, int micro_batches) {
  CAPTURE(of.stages, of.each, of.v_shaped, micro_batches);
  int64_t last = -1;
  for (int stage = 0; stage < of.stages; ++stage) {
    std::set<int64_t> units;
    std::set<std::pair<int, int>> seen;
    int64_t before = -1;
    for (const ForwardPass& pass : forward_order(of, stage, micro_batches)) {
      const int c = of.global_of(stage, pass.virtual_stage);
      const int64_t unit = forward_unit(of, c, pass.micro_batch);
      CHECK(unit > before);
      before = unit;
      units.insert(unit);
      seen.insert({pass.virtual_stage, pass.micro_batch});
      // What it reads was made in the unit before.
      if (c > 0) CHECK(forward_unit(of, c - 1, pass.micro_batch) == unit - 1);
      last = std::max(last, unit);
    }
    CHECK(int(seen.size()) == of.each * micro_batches);
    CHECK(units.size() == seen.size());
  }
  CHECK(most_under_way(of, micro_batches) == std::min(of.stages, micro_batches));
  // Whole groups leave no unit out but at the begin and the end, where a V waits on its way back, too.
  const int ends = of.v_shaped ? 2 : 1;
  if (micro_batches % of.stages == 0) CHECK(last + 1 == of.each * micro_batches + ends * (of.stages - 1));
}

}  // namespace

TEST_CASE("forward passes go on by one virtual stage a unit, on all stages at once", "[pipeline]") {
  for (int stages = 1; stages <= 6; ++stages)
    for (int micro_batches = 1; micro_batches <= 13; ++micro_batches) {
      for (int each = 1; each <= (stages > 1 ? 3 : 1); ++each)
        check_order({.stages = stages, .each = each}, micro_batches);
      if (stages > 1) check_order({.stages = stages, .each = 2, .v_shaped = true}, micro_batches);
    }
}
