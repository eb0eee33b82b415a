// Goal: of what the ranks of a burn-in found, each tested node has its slowest place and the first thing
// that is wrong. Method: results of ranks on three nodes by hand.
#include "runtime/run/record/burn_in_record.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "runtime/base/record.h"

using namespace trainctl;

namespace {

RankTest rank_test(double product_s, const char* place, const char* wrong = "") {
  RankTest test{.product_s = product_s};
  std::strcpy(test.place, place);
  std::strcpy(test.wrong, wrong);
  return test;
}

}  // namespace

TEST_CASE("a burn-in has a row for each tested node", "[burn_in_record]") {
  std::vector<RankTest> ranks = {rank_test(1, "core 0"), rank_test(3, "core 5"), rank_test(2, "core 1"),
                                 rank_test(0, "")};
  const std::vector<TestedNode> nodes = {{"a", 0, 2}, {"c", 2, 2}};
  BurnInRecord record = burn_in_record(nodes, ranks);
  REQUIRE(record.nodes.size() == 2);
  CHECK(record.nodes[0].node == "a");
  CHECK(record.nodes[0].place == "core 5");
  CHECK(record.nodes[0].product_s == 3);
  CHECK(record.nodes[1].place == "core 1");
  CHECK(record.nodes[1].wrong == "");
  CHECK(record.text == "burn-in: nothing is wrong with 2 nodes");
  ranks[3] = rank_test(1, "core 7", "core 7: it is wrong");
  record = burn_in_record(nodes, ranks);
  CHECK(record.nodes[0].wrong == "");
  CHECK(record.nodes[1].wrong == "core 7: it is wrong");
  CHECK(record.text == "burn-in: c must not be used: core 7: it is wrong");
  ranks[1] = rank_test(1, "core 5", "core 5: it is, too");
  record = burn_in_record(nodes, ranks);
  CHECK(record.text == "burn-in: a must not be used: core 5: it is, too, and 1 node more");
  const auto again = record_of_text<BurnInRecord>(record_text(record));
  CHECK(again.nodes[1].wrong == record.nodes[1].wrong);
  CHECK(again.text == record.text);
}
