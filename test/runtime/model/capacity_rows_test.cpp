// Goal: where experts have a capacity, a rank plans for as many rows as they take, and no fewer.
// Method: sizes by hand for one rank and for four that share experts, with and without blocks of a sequence;
// the rows of the sublayer's tensors.
#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/model/sublayers/moe.h"

using namespace trainctl;

namespace {

LayerShape shape_of(int expert_ranks, int blocks) {
  LayerShape s{.micro_sequences = 2, .seq_len = 40, .hidden = 16, .rows = 80, .local_rows = 80};
  s.cut = {.blocks = blocks, .ranks = 1, .sequences = 2, .seq_len = 40};
  s.expert_ranks = expert_ranks;
  return s;
}

int64_t most_rows_of_tensors(const MoePlan& plan, const LayerShape& s) {
  int64_t most = 0;
  for (const TensorDeclaration& t : plan.tensors(s)) most = std::max(most, t.rows);
  return most;
}

}  // namespace

TEST_CASE("a capacity is the factor times the mean of a source, rounded up") {
  MoePlan plan{.experts = 8, .top_k = 2, .ffn = 4};
  const auto capacity = [&](double factor, int expert_ranks, int blocks) {
    plan.capacity_factor = factor;
    return plan.dispatch(shape_of(expert_ranks, blocks)).capacity;
  };
  CHECK(capacity(0, 1, 1) == 0);
  CHECK(capacity(1, 1, 1) == 20);
  CHECK(capacity(1.1, 1, 1) == 22);  // which rounding makes a little more
  CHECK(capacity(1.11, 1, 1) == 23);
  CHECK(capacity(1.1, 4, 1) == 22);
  CHECK(capacity(1.1, 1, 4) == 6);
  CHECK(capacity(1e-3, 1, 1) == 1);
  plan.capacity_factor = 1.11;
  CHECK(plan.dispatch(shape_of(1, 1)).sequences == 2);
  CHECK(plan.dispatch(shape_of(1, 1)).sequence_capacity == 12);  // 11.1 of 40 tokens
}

TEST_CASE("a rank plans for the rows that its experts take") {
  MoePlan plan{.experts = 8, .top_k = 2, .ffn = 4};
  CHECK(most_rows_of_tensors(plan, shape_of(1, 1)) == 160);
  CHECK(most_rows_of_tensors(plan, shape_of(4, 1)) == 640);
  CHECK(most_rows_of_tensors(plan, shape_of(4, 4)) == 640);
  plan.capacity_factor = 1.1;
  CHECK(most_rows_of_tensors(plan, shape_of(1, 1)) == 160);  // all may be taken
  CHECK(most_rows_of_tensors(plan, shape_of(4, 1)) == 4 * 2 * 22);
  // In training 6 of 20 tokens; without, 2 of each of 4 chunks.
  CHECK(most_rows_of_tensors(plan, shape_of(4, 4)) == 4 * 4 * 2 * 8);
  plan.capacity_factor = 0.55;
  CHECK(most_rows_of_tensors(plan, shape_of(1, 1)) == 8 * 2 * 6);  // 11 in training
}
