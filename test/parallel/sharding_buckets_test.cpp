// Goal: buckets of parameters cover every chunk once, in the order of the forward pass, and each owner's part
//       of a bucket is one contiguous run that holds its chunks and no others.
// Method: the layouts of small models for 1 to 8 dp ranks and several sizes of buckets; pure.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "parallel/param_gathers.h"

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
  return make_layout(std::move(uses), grids, {.lanes = 8, .bucket_elements = bucket_elements},
                     {{axes::data, dp, 0, true}});
}

std::vector<int> groups_with_chunks(const Layout& layout) {
  std::vector<int> groups;
  for (int g = 0; g < layout.groups(); ++g)
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
          int64_t count = 0;
          for (size_t i = bucket.chunks.begin; i < bucket.chunks.end; ++i) {
            count += group.chunks[i].where.global.count();
            CHECK(seen.insert({bucket.group, i}).second);
            CHECK(group.chunks[i].use >= bucket.first_use);
          }
          CHECK((count <= elements || bucket.chunks.end - bucket.chunks.begin == 1));
          CHECK(size_t(count) * 4 <= layout.ring.sums + size_t(dp == 1 ? count * 4 : 0));
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
          std::map<int, int64_t> next;  // of each owner: where its next chunk must begin
          for (size_t i = begin; i < end; ++i) {
            const FlatChunk& c = group.chunks[i];
            const auto [at, first] = next.try_emplace(c.owner, c.offset);
            CHECK(c.offset == at->second);
            CHECK(c.offset >= group.owner_begin[size_t(c.owner)]);
            at->second += c.where.global.count();
            CHECK(at->second <= group.owner_begin[size_t(c.owner) + 1]);
          }
        }
    }
  }
}
