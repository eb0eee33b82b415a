// Goal: a plan expects as many tokens on the way to experts as there are where every choice of experts is as
// likely as any other. Method: all choices of a token's experts one by one, with and without groups, over
// every number of ranks; drops by hand.
#include <bit>
#include <catch2/catch.hpp>
#include <cstdint>

#include "runtime/model/sublayers/dispatch.h"

using namespace trainctl;

namespace {

/// Of all choices of top_k experts that lie in top_groups of the groups, each group choice as likely as any
/// other, those with an expert on the first rank.
double counted_share(const Dispatch& d, int ranks) {
  const int64_t size = d.experts / d.groups, here = d.experts / ranks;
  const auto first_rank = (uint32_t(1) << here) - 1;
  int64_t all = 0, met = 0;
  for (uint32_t groups = 0; groups < uint32_t(1) << d.groups; ++groups) {
    if (std::popcount(groups) != d.top_groups) continue;
    for (uint32_t chosen = 0; chosen < uint32_t(1) << d.experts; ++chosen) {
      bool legal = std::popcount(chosen) == d.top_k;
      for (int64_t e = 0; e < d.experts; ++e)
        legal = legal && ((chosen >> e & 1) == 0 || (groups >> (e / size) & 1) != 0);
      all += legal, met += legal && (chosen & first_rank) != 0;
    }
  }
  return double(met) / double(all);
}

}  // namespace

TEST_CASE("the share of tokens that go to a rank is that of all choices of experts") {
  for (const Dispatch& d : {Dispatch{.experts = 8, .top_k = 1}, Dispatch{.experts = 8, .top_k = 3},
                            Dispatch{.experts = 12, .top_k = 4}, Dispatch{.experts = 8, .top_k = 8},
                            Dispatch{.experts = 8, .top_k = 2, .groups = 4, .top_groups = 2},
                            Dispatch{.experts = 12, .top_k = 3, .groups = 3, .top_groups = 1},
                            Dispatch{.experts = 8, .top_k = 3, .groups = 2, .top_groups = 2}})
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(d.experts, d.top_k, d.groups, d.top_groups, ranks);
      const int64_t here = d.experts / ranks, of_group = d.experts / d.groups;
      if (here % of_group != 0 && of_group % here != 0) continue;  // a rank has parts of groups
      CHECK(d.share_of_tokens(100, ranks) == Approx(counted_share(d, ranks)));
    }
}

TEST_CASE("tokens of which all rows are dropped go nowhere") {
  // Half of the rows are dropped: a token with one expert on one of two ranks has a row there in half of its
  // choices.
  const Dispatch half{.experts = 8, .top_k = 1, .capacity = 5};
  REQUIRE(half.rows(80) == 40);
  CHECK(half.share_of_tokens(80, 2) == Approx(0.25));
  const Dispatch two{.experts = 2, .top_k = 2, .capacity = 20};
  CHECK(two.share_of_tokens(40, 1) == Approx(0.75));
  CHECK(two.share_of_tokens(0, 1) == 0);
}

TEST_CASE("tokens are sent where a rank may have several of their experts") {
  const Dispatch d{.experts = 8, .top_k = 2}, one{.experts = 8, .top_k = 1};
  CHECK(d.sends_tokens(2));
  CHECK(d.sends_tokens(4));
  CHECK_FALSE(d.sends_tokens(8));
  CHECK_FALSE(d.sends_tokens(1));
  CHECK_FALSE(one.sends_tokens(2));
}
