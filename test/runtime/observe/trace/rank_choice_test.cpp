// Goal: a list of ranks means what a person expects, and one that means nothing is refused with a sentence;
// the default of a large run is whole pipelines.
// Method: lists by hand; every mesh of a grid of sizes.
#include <catch2/catch.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/observe/trace/rank_choice.h"

using namespace trainctl;
using namespace trainctl::trace;

TEST_CASE("a list of ranks") {
  CHECK(ranks_of_list("3", 8) == std::vector{3});
  CHECK(ranks_of_list("7,0,2-4,3", 8) == std::vector{0, 2, 3, 4, 7});
  CHECK(ranks_of_list("0-63", 100).size() == 64);
  for (const auto& [list, why] :
       std::vector<std::pair<std::string, std::string>>{{"", "\"\" is no rank"},
                                                        {"1,,2", "\"\" is no rank"},
                                                        {"a", "\"a\" is no rank"},
                                                        {"1-", "\"\" is no rank"},
                                                        {"-1", "\"\" is no rank"},
                                                        {"4-2", "\"4-2\" goes backwards"},
                                                        {"8", "the run has the ranks 0 to 7, and no rank 8"},
                                                        {"0-99999999999", "is no rank"}}) {
    INFO(list);
    CHECK_THROWS_WITH(ranks_of_list(list, 8), Catch::Contains(why) && Catch::Contains("such as 0,8,16-23") &&
                                                  Catch::Contains("--ranks"));
  }
  CHECK_THROWS_WITH(ranks_of_list("0-64", 100),
                    Catch::Contains("these are 65 ranks, and one trace has at most 64"));
}

TEST_CASE("context ranks are chosen as data-parallel ones are") {
  CHECK(sampled_ranks({.tp = 2, .cp = 2, .dp = 2, .pp = 1}) == std::vector{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(sampled_ranks({.tp = 1, .cp = 4, .dp = 2, .pp = 2}, 4) == std::vector{0, 1, 8, 9});
}

TEST_CASE("by default all ranks, or whole pipelines") {
  CHECK(sampled_ranks({.tp = 2, .dp = 2, .pp = 2}) == std::vector{0, 1, 2, 3, 4, 5, 6, 7});
  for (const int tp : {1, 2, 8, 16})
    for (const int dp : {1, 3, 16, 100})
      for (const int pp : {1, 2, 5, 16, 64, 100}) {
        const parallel::MeshShape mesh{.tp = tp, .dp = dp, .pp = pp};
        CAPTURE(tp, dp, pp);
        const std::vector<int> ranks = sampled_ranks(mesh);
        CHECK(ranks.size() <= 64);
        CHECK(std::is_sorted(ranks.begin(), ranks.end()));
        CHECK(std::set(ranks.begin(), ranks.end()).size() == ranks.size());
        if (mesh.world_size() <= 64) CHECK(int(ranks.size()) == mesh.world_size());
        if (mesh.world_size() > 64) CHECK(ranks.size() > 32);
        CHECK(ranks.front() == 0);
        std::set<std::pair<int, int>> places;  // (dp, tp)
        for (const int rank : ranks) {
          const parallel::MeshPosition at = parallel::position_of(mesh, rank);
          places.insert({at.dp, at.tp});
        }
        if (pp <= 64)
          CHECK(ranks.size() == places.size() * size_t(pp));
        else
          CHECK(places.size() == 1);
      }
}
