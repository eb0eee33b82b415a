// Goal: what an optimizer keeps of a parameter decides memory, owners and checkpoints. Method: rows made
// up here (a state of a whole matrix that is saved, one in bf16 that is not), dealt to 1 to 5 ranks at
// each ZeRO stage beside parameters with AdamW's rows: bytes by hand, one owner for each matrix, every
// chunk owned once.
#include "parallel/state_rows.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "parallel/sharding_plan.h"

using namespace trainctl;
using namespace trainctl::parallel;

namespace {

constexpr StateRow kByMatrix[] = {
    {StateRole::master, "master weights", DType::f32, StateUnit::matrix},
    {StateRole::first_moment, "momentum", DType::f32, StateUnit::matrix},
    {StateRole::second_moment, "scales", DType::bf16, StateUnit::element, false}};

struct Uses {
  std::vector<ParamUse> uses;
  std::vector<std::vector<Box>> grids;
  void add(int64_t rows, int64_t cols, StateRows states) {
    ParamUse use;
    use.param = use.part = int(uses.size());
    use.layout = {.name = std::to_string(use.param), .rows = rows, .cols = cols};
    use.replicated |= axes::tensor;
    use.states = states;
    grids.push_back(chunk_grid(use.layout, {1}, 16));
    uses.push_back(use);
  }
};

sharding::Layout layout_of(const Uses& uses, int zero, int ranks, int rank) {
  return sharding::make_layout(uses.uses, uses.grids, {.zero_stage = zero, .lanes = 8},
                               {{axes::data, ranks, rank, true}, {axes::tensor, 1, 0}});
}

}  // namespace

TEST_CASE("rows are compared by what they say, and counted") {
  CHECK(StateRows(kAdamW) == StateRows(kAdamW));
  CHECK(StateRows(kAdamW) != StateRows(kByMatrix));
  CHECK(StateRows(kAdamW).bytes(1, 1) == 12);
  CHECK(StateRows(kAdamW).saved_bytes(1, 1) == 12);
  CHECK(StateRows(kByMatrix).bytes(1, 1) == 10);
  CHECK(StateRows(kByMatrix).saved_bytes(1, 1) == 8);
  CHECK(StateRows(kByMatrix).saved() == 2);
  CHECK(StateRows(kByMatrix).has_matrices());
  CHECK(!StateRows(kAdamW).has_matrices());
}

TEST_CASE("a matrix whose update reads all of it has one owner, and every chunk has one") {
  Uses uses;
  int64_t elements = 0;
  for (const int64_t rows : {8, 24, 5, 40, 16, 7}) {
    uses.add(rows, 8, kByMatrix);
    uses.add(rows, 1, kAdamW);
    elements += rows * 8;
  }
  for (const int zero : {0, 1, 2, 3})
    for (const int ranks : {1, 2, 3, 4, 5}) {
      if (zero >= 2 && 8 % ranks != 0) continue;
      std::map<int, std::set<int>> owners;  // of each matrix
      std::map<std::pair<int, int>, int> saved;
      ShardingBytes all;
      for (int rank = 0; rank < ranks; ++rank) {
        const sharding::Layout layout = layout_of(uses, zero, ranks, rank);
        for (const auto& owned : layout.owned_chunks()) {
          if (!owned.saved_here) continue;
          ++saved[{owned.chunk.where.param, owned.chunk.where.chunk}];
          if (uses.uses[size_t(owned.chunk.use)].states.has_matrices())
            owners[owned.chunk.where.param].insert(rank);
        }
        const ShardingBytes bytes = layout.bytes();
        all.optimizer += bytes.optimizer;
        all.saved += bytes.saved;
        all.state_elements += bytes.state_elements;
        all.saved_chunks += bytes.saved_chunks;
        all.state_boxes += bytes.state_boxes;
      }
      CAPTURE(zero, ranks);
      CHECK(owners.size() == 6);
      for (const auto& [param, of] : owners) CHECK(of.size() == 1);
      size_t chunks = 0;
      for (const auto& grid : uses.grids) chunks += grid.size();
      CHECK(saved.size() == chunks);
      for (const auto& [chunk, times] : saved) REQUIRE(times == 1);
      const int64_t copies = zero == 0 ? ranks : 1;
      CHECK(int64_t(all.optimizer) == copies * (elements * 10 + elements / 8 * 12));
      CHECK(int64_t(all.saved) == copies * (elements * 8 + elements / 8 * 12));
      CHECK(all.state_elements == copies * (elements + elements / 8));
      CHECK(all.state_boxes == copies * int64_t(chunks));
      size_t of_matrices = 0;
      for (size_t u = 0; u < uses.uses.size(); u += 2) of_matrices += uses.grids[u].size();
      CHECK(all.saved_chunks == copies * int64_t(2 * of_matrices + 3 * (chunks - of_matrices)));
    }
}
