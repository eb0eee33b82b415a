#include "parallel/sharded_exchange.h"

namespace trainctl::parallel::sharding {

std::vector<Run> runs_of(const GroupPlan& group, size_t begin, size_t end) {
  std::vector<Run> runs(group.owner_begin.size() - 1);
  for (size_t i = begin; i < end; ++i) {
    Run& run = runs[size_t(group.chunks[i].owner)];
    if (run.count == 0) run.begin = group.chunks[i].offset;
    run.count += group.chunks[i].where.global.count();
  }
  return runs;
}

}  // namespace trainctl::parallel::sharding
