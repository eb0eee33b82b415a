// Goal: buckets of parameters cover every chunk once, in the order of the forward pass, and each owner's part
//       of a bucket is one contiguous run that holds its chunks and no others.
// Method: the layouts of small models for 1 to 8 dp ranks and several sizes of buckets; pure.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "parallel/param_gathers.h"
#include "parallel/sharded_exchange.h"

using namespace trainctl;
using namespace trainctl::parallel;
using namespace trainctl::parallel::sharding;

namespace {

/// Matrices of `layers` layers, cut into chunks of 12 elements.
Layout layout_of(int layers, int dp, int64_t bucket_elements) {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  for (int layer = 0; layer < layers; ++layer) {
    ParamUse use;
    use.param = layer;
    use.layout = {.name = "layers." + std::to_string(layer), .rows = 8 + layer, .cols = 6};
    use.dtype = DType::bf16;
    grids.push_back(chunk_grid(use.layout, {1}, 12));
    uses.push_back(std::move(use));
  }
  return make_layout(std::move(uses), grids, {.bucket_elements = bucket_elements}, dp, 0, false);
}

std::vector<int> groups_with_chunks(const Layout& layout) {
  std::vector<int> groups;
  for (int g = 0; g < kGroups; ++g)
    if (!layout.plan.groups[size_t(g)].chunks.empty()) groups.push_back(g);
  return groups;
}

}  // namespace

TEST_CASE("buckets of parameters cover every chunk once, in the order of the forward pass") {
  for (const int layers : {1, 3, 7})
    for (const int dp : {1, 2, 3, 8})
      for (const int64_t elements : {1, 50, 1000}) {
        CAPTURE(layers, dp, elements);
        const Layout layout = layout_of(layers, dp, elements);
        const std::vector<int> groups = groups_with_chunks(layout);
        REQUIRE(!groups.empty());
        std::set<std::pair<int, size_t>> seen;
        int last_use = 0;
        for (const GatherBucket& bucket : gather_buckets(layout, groups)) {
          const GroupPlan& group = layout.plan.groups[size_t(bucket.group)];
          CHECK(bucket.first_use >= last_use);
          last_use = bucket.first_use;
          for (size_t i = bucket.begin; i < bucket.end; ++i) {
            CHECK(seen.insert({bucket.group, i}).second);
            CHECK(group.chunks[i].use >= bucket.first_use);
          }
          // Only the bucket with the first chunk of the list may be small.
          const int64_t least = group.bucket_elements(elements, dp);
          if (bucket.begin > 0) CHECK(group.elements(bucket.begin, bucket.end) >= least);
        }
        size_t chunks = 0;
        for (const int g : groups) chunks += layout.plan.groups[size_t(g)].chunks.size();
        CHECK(seen.size() == chunks);
      }
}

TEST_CASE("an owner's part of any range of chunks is one run in flat order") {
  for (const int dp : {1, 2, 3, 8}) {
    const Layout layout = layout_of(4, dp, 1);
    for (const int g : groups_with_chunks(layout)) {
      const GroupPlan& group = layout.plan.groups[size_t(g)];
      for (size_t begin = 0; begin < group.chunks.size(); ++begin)
        for (size_t end = begin + 1; end <= group.chunks.size(); ++end) {
          const std::vector<Run> runs = runs_of(group, begin, end);
          REQUIRE(runs.size() == size_t(dp));
          std::map<int, int64_t> next;  // of each owner: where its next chunk must begin
          for (size_t i = begin; i < end; ++i) {
            const FlatChunk& c = group.chunks[i];
            const auto [at, first] = next.try_emplace(c.owner, runs[size_t(c.owner)].begin);
            CHECK(c.offset == at->second);
            at->second += c.where.global.count();
          }
          for (int owner = 0; owner < dp; ++owner) {
            const Run& run = runs[size_t(owner)];
            const auto at = next.find(owner);
            CHECK(run.count == (at == next.end() ? 0 : at->second - run.begin));
          }
        }
    }
  }
}
