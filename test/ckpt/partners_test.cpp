// Goal: every node has a partner that holds its copy; the loss of any one node, and where placement allows of
// any one data-parallel replica, loses no rank's state; where that is impossible it is said, with the reason.
// Method: exhaustive for small meshes and every way to fill nodes in rank order; seeded random placements
// against a search of all permutations (TRAINCTL_TEST_SEED); the loss of nodes and replicas is played
// through, not computed from the result's own flags.
#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "ckpt/partners.h"
#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::test;
using ckpt::Partners;
using parallel::MeshShape;

namespace {

/// Nodes of `slots` ranks each, filled in order.
std::vector<int> in_order(const MeshShape& shape, int slots) {
  std::vector<int> nodes(static_cast<size_t>(shape.world_size()));
  for (size_t rank = 0; rank < nodes.size(); ++rank) nodes[rank] = int(rank) / slots;
  return nodes;
}

std::set<int> replicas_on(const MeshShape& shape, const std::vector<int>& nodes, int node) {
  std::set<int> result;
  for (size_t rank = 0; rank < nodes.size(); ++rank)
    if (nodes[rank] == node) result.insert(parallel::position_of(shape, int(rank)).dp);
  return result;
}

bool apart(const MeshShape& shape, const std::vector<int>& nodes, int a, int b) {
  const std::set<int> x = replicas_on(shape, nodes, a);
  for (const int replica : replicas_on(shape, nodes, b))
    if (x.count(replica)) return false;
  return true;
}

/// True if every rank's state is on some node after all of `lost` are gone.
bool survives(const Partners& partners, const std::vector<int>& nodes, const std::set<int>& lost) {
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](int node) { return !lost.count(node) || !lost.count(partners.partner.at(node)); });
}

/// Holds for every result with a partner.
void check_partners(const MeshShape& shape, const std::vector<int>& nodes, const Partners& partners) {
  const std::set<int> all(nodes.begin(), nodes.end());
  REQUIRE(partners.problem == "");
  REQUIRE(partners.partner.size() == all.size());
  std::set<int> holders;
  for (const auto& [node, holder] : partners.partner) {
    REQUIRE((all.count(node) && all.count(holder) && node != holder));
    REQUIRE(holders.insert(holder).second);  // memory is shared out evenly
    const bool listed = std::count(partners.same_replica.begin(), partners.same_replica.end(), node) > 0;
    REQUIRE(listed == !apart(shape, nodes, node, holder));
    REQUIRE(survives(partners, nodes, {node}));
  }
  bool survives_replicas = true;
  for (int replica = 0; replica < shape.dp; ++replica) {
    std::set<int> lost;
    for (const int node : all)
      if (replicas_on(shape, nodes, node).count(replica)) lost.insert(node);
    survives_replicas = survives_replicas && survives(partners, nodes, lost);
  }
  if (partners.weakness.empty()) REQUIRE(survives_replicas);
  if (!survives_replicas) REQUIRE(!partners.weakness.empty());
  REQUIRE(partners.weakness.empty() == (shape.dp > 1 && partners.same_replica.empty()));
}

/// Over all permutations without fixed points: the largest number of nodes that are apart from their
/// partners.
size_t best_of_all(const MeshShape& shape, const std::vector<int>& nodes) {
  const std::set<int> all(nodes.begin(), nodes.end());
  const std::vector<int> list(all.begin(), all.end());
  std::vector<std::vector<bool>> is_apart(list.size(), std::vector<bool>(list.size()));
  for (size_t a = 0; a < list.size(); ++a)
    for (size_t b = 0; b < list.size(); ++b) is_apart[a][b] = apart(shape, nodes, list[a], list[b]);
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t(0));
  size_t best = 0;
  do {
    size_t count = 0;
    bool fixed = false;
    for (size_t i = 0; i < order.size(); ++i) fixed |= order[i] == i, count += is_apart[i][order[i]];
    if (!fixed) best = std::max(best, count);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

}  // namespace

TEST_CASE("every small mesh on nodes filled in order") {
  int cases = 0, whole_replicas = 0;
  for (const int tp : {1, 2, 4})
    for (const int cp : {1, 2})
      for (const int dp : {1, 2, 3, 4, 6})
        for (const int pp : {1, 2, 3})
          for (const int slots : {1, 2, 3, 4, 8}) {
            const MeshShape shape{tp, cp, dp, pp};
            const std::vector<int> nodes = in_order(shape, slots);
            INFO("tp " << tp << " cp " << cp << " dp " << dp << " pp " << pp << " slots " << slots);
            const Partners partners = ckpt::place_partners(shape, nodes);
            ++cases;
            if (nodes.back() == 0) {
              CHECK(partners.partner.empty());
              CHECK(partners.problem.find("on one node") != std::string::npos);
              CHECK(partners.weakness == partners.problem);
              continue;
            }
            check_partners(shape, nodes, partners);
            // Nodes that hold whole parts of single replicas, at least two replicas of equal size: always
            // apart.
            if (dp > 1 && (tp * cp) % slots == 0) {
              CHECK(partners.same_replica.empty());
              ++whole_replicas;
            }
            if (nodes.back() <= 6)
              CHECK(best_of_all(shape, nodes) == partners.partner.size() - partners.same_replica.size());
          }
  CHECK(cases == 450);
  CHECK(whole_replicas > 100);
}

TEST_CASE("random placements: no permutation has more pairs in different replicas") {
  const uint32_t seed = test_seed();
  INFO("TRAINCTL_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  int weak = 0, strong = 0, without = 0;
  for (int round = 0; round < 1500; ++round) {
    const MeshShape shape{1 + int(random() % 2), 1, 1 + int(random() % 5), 1 + int(random() % 3)};
    const int nodes = 1 + int(random() % 7);
    std::vector<int> node_of(static_cast<size_t>(shape.world_size()));
    for (int& node : node_of) node = 10 * int(random() % unsigned(nodes)) - 7;
    const Partners partners = ckpt::place_partners(shape, node_of);
    if (!partners.problem.empty()) {
      REQUIRE(std::set<int>(node_of.begin(), node_of.end()).size() == 1);
      ++without;
      continue;
    }
    check_partners(shape, node_of, partners);
    INFO("round " << round << ": " << partners.weakness);
    REQUIRE(best_of_all(shape, node_of) == partners.partner.size() - partners.same_replica.size());
    ++(partners.weakness.empty() ? strong : weak);
  }
  CHECK((weak > 100 && strong > 100 && without > 20));
}

TEST_CASE("what cannot be is said with its reason") {
  CHECK(ckpt::place_partners({1, 1, 1, 1}, {0}).problem ==
        "the only rank is on one node: no other node can hold a copy of its memory");
  CHECK(ckpt::place_partners({2, 1, 2, 1}, {5, 5, 5, 5}).problem.find("all 4 ranks are on one node") == 0);
  const Partners one_replica = ckpt::place_partners({2, 1, 1, 2}, {0, 0, 1, 1});
  CHECK((one_replica.problem == "" && one_replica.partner == std::map<int, int>{{0, 1}, {1, 0}}));
  CHECK(one_replica.weakness.find("one data-parallel replica") != std::string::npos);
  // Replica 0 on three nodes, replica 1 on one: two of the three must share.
  const Partners uneven = ckpt::place_partners({3, 1, 2, 1}, {0, 1, 2, 3, 3, 3});
  CHECK(uneven.same_replica.size() == 2);
  CHECK(uneven.weakness.find("2 of 4 nodes") == 0);
}

TEST_CASE("a node that is left alone changes places where it costs no pair") {
  // n and A are apart from B alone, P and Q from each other alone: each tag below is a replica of two ranks
  // that two nodes share.
  enum { n, A, B, P, Q };
  const std::pair<int, int> shared[] = {{n, A}, {P, n}, {P, A}, {P, B}, {Q, n}, {Q, A}, {Q, B}};
  const MeshShape shape{1, 1, 7, 2};
  std::vector<int> number{0, 1, 2, 3, 4};
  do {
    std::vector<int> nodes(14);
    for (size_t tag = 0; tag < 7; ++tag)
      nodes[tag] = number[size_t(shared[tag].first)], nodes[tag + 7] = number[size_t(shared[tag].second)];
    const Partners partners = ckpt::place_partners(shape, nodes);
    check_partners(shape, nodes, partners);
    REQUIRE(best_of_all(shape, nodes) == partners.partner.size() - partners.same_replica.size());
  } while (std::next_permutation(number.begin(), number.end()));
}

TEST_CASE("placing 12500 nodes takes few looks, and no more than all pairs where many cannot be apart") {
  const MeshShape regular{8, 1, 782, 16};
  const Partners first_try = ckpt::place_partners(regular, in_order(regular, 8));
  CHECK((first_try.problem == "" && first_try.same_replica.empty()));
  CHECK(first_try.looks ==
        2 * 12512);  // the first holder of each has the same replica, the second none of it
  // Three quarters of the nodes belong to one replica alone.
  const MeshShape two{1, 1, 2, 10000};
  std::vector<int> nodes(20000);
  for (int rank = 0; rank < 20000; ++rank)
    nodes[size_t(rank)] = rank % 2 == 0 ? rank / 2 : 10000 + rank % 2500;
  const Partners crowded = ckpt::place_partners(two, nodes);
  CHECK(crowded.problem == "");
  INFO(crowded.looks);
  CHECK(crowded.looks < int64_t(crowded.partner.size() * crowded.partner.size()));
}
