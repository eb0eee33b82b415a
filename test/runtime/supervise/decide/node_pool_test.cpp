// Goal: the order of a run's nodes: who carries the next attempt, who keeps its place, who is put out and
//       who comes back.
// Method: pools of a few nodes, with each rule on both of its sides; every subset of four nodes against a
//       plain count.
#include "runtime/supervise/decide/node_pool.h"

#include <catch2/catch.hpp>

using namespace trainctl;

namespace {

using Names = std::vector<std::string>;

NodePool::Options pool_options(const Names& nodes, int least_ranks = 2) {
  return {.nodes = nodes,
          .least_ranks = least_ranks,
          .settle_s = 5,
          .quarantine = {.failures = 2, .window_s = 100}};
}

/// All nodes have two slots and are ready at time 0.
NodePool pool_of(const Names& nodes, int least_ranks = 2) {
  NodePool pool(pool_options(nodes, least_ranks), 0);
  for (const std::string& name : nodes) pool.ready(name, 2, 0);
  return pool;
}
Names order_of(const NodePool& pool) {
  Names names;
  for (const PoolNode& node : pool.nodes()) names.push_back(node.name);
  return names;
}
const PoolNode& node_of(const NodePool& pool, const std::string& name) {
  for (const PoolNode& node : pool.nodes())
    if (node.name == name) return node;
  FAIL("no node " + name);
  return pool.nodes().front();
}

}  // namespace

TEST_CASE("ranks are those of whole tensor groups on usable nodes", "[node_pool]") {
  const Names names = {"a", "b", "c", "d"};
  const int slots[] = {1, 2, 5, 8};
  for (const int tensor : {1, 2, 4})
    for (int there = 0; there < 16; ++there)
      for (int out = 0; out < 16; ++out) {
        NodePool::Options given = pool_options(names);
        given.tensor = tensor;
        NodePool pool(given, 0);
        int ranks = 0, usable = 0, coming = 0;
        for (int i = 0; i < 4; ++i) {
          const bool is_there = there >> i & 1, is_out = out >> i & 1;
          if (is_there) pool.ready(names[size_t(i)], slots[i], 0);
          pool.set_quarantined(names[size_t(i)], is_out, false);
          if (is_there && !is_out) ++usable, ranks += slots[i] - slots[i] % tensor;
          if (!is_there && !is_out) ++coming;
        }
        CHECK(pool.usable_ranks() == ranks);
        CHECK(pool.usable_count() == usable);
        CHECK(pool.coming_count() == coming);
      }
}

TEST_CASE("a node that stays keeps its place; the first spare takes that of a lost one", "[node_pool]") {
  NodePool pool = pool_of({"a", "b", "c", "d", "e"});
  CHECK(pool.select(6) == Names{"a", "b", "c"});
  CHECK(pool.begin_attempt({"a", "b", "c"}, 1).empty());
  const NodePool::Loss loss = pool.lost("b", "gone", 2);
  CHECK(loss.was_member);
  CHECK_FALSE(loss.is_put_out);
  CHECK(order_of(pool) == Names{"a", "c", "d", "e", "b"});
  CHECK_FALSE(pool.lost("b", "again", 2).was_member);  // it is lost already
  CHECK(node_of(pool, "b").why == "gone");
  pool.end_attempt();
  CHECK(pool.select(6) == Names{"a", "d", "c"});
  pool.ready("b", 2, 3);  // it has returned as the last spare
  CHECK(pool.select(6) == Names{"a", "d", "c"});
  CHECK(pool.select(10) == Names{"a", "d", "c", "e", "b"});
  CHECK(pool.select(5) == Names{"a", "d", "c"});  // the last one is not full
}

TEST_CASE("an attempt that begins names its first node that is not ready", "[node_pool]") {
  NodePool pool = pool_of({"a", "b", "c"});
  pool.lost("b", "gone", 1);
  pool.lost("c", "gone", 1);
  CHECK(pool.begin_attempt({"a", "c", "b"}, 2) == "c");
  CHECK(node_of(pool, "a").member);
  CHECK_FALSE(node_of(pool, "c").member);
  CHECK(pool.begin_attempt({"a"}, 3).empty());
}

TEST_CASE("losses that follow each other at once have one cause", "[node_pool]") {
  for (const double apart_s : {4.9, 5.0}) {
    NodePool pool = pool_of({"a", "b"});
    CHECK_FALSE(pool.lost("a", "gone", 10).is_put_out);
    pool.ready("a", 2, 10);
    CHECK(pool.lost("a", "gone", 10 + apart_s).is_put_out == (apart_s >= 5));
  }
}

TEST_CASE("what says more of a node puts it out sooner: three failures, two starts, one broken device",
          "[node_pool]") {
  for (const int most : {3, 1, 0})
    for (const auto& [fault, enough] : {std::pair{NodeFault::possible, 3}, std::pair{NodeFault::start, 2},
                                        std::pair{NodeFault::device, 1}}) {
      NodePool::Options options = pool_options({"a", "b"});
      options.quarantine.failures = most;
      NodePool pool(options, 0);
      for (const char* name : {"a", "b"}) pool.ready(name, 2, 0);
      int failures = 1;
      while (failures < 5 && !pool.failed("a", "it failed", 10 * failures, fault)) ++failures;
      CHECK(failures == (most == 0 ? 5 : std::min(most, enough)));  // 0: failures never do
    }
}

TEST_CASE("a node that left a supervisor which stood still has not failed", "[node_pool]") {
  NodePool pool = pool_of({"a", "b"});
  for (const double at_s : {10.0, 20.0, 30.0}) {
    CHECK_FALSE(pool.lost("a", "it did not come back", at_s, true).is_put_out);
    pool.ready("a", 2, at_s);
  }
  CHECK(node_of(pool, "a").failures.empty());
}

TEST_CASE("a node with repeated failures is put out if the others carry the run", "[node_pool]") {
  for (const int least_ranks : {2, 3}) {
    NodePool pool = pool_of({"a", "b"}, least_ranks);
    CHECK_FALSE(pool.failed("a", "it crashed", 10));
    CHECK_FALSE(pool.failed("", "it crashed", 20));
    CHECK_FALSE(pool.failed("x", "it crashed", 20));
    CHECK(pool.failed("a", "it crashed", 20) == (least_ranks == 2));
    CHECK(node_of(pool, "a").put_out == (least_ranks == 2));
  }
  NodePool pool = pool_of({"a", "b"});
  pool.failed("a", "it crashed", 10);
  CHECK_FALSE(pool.failed("a", "it crashed", 111));  // the first one is out of the window
}

TEST_CASE("a node that was put out is reported when the run goes on without it", "[node_pool]") {
  NodePool pool = pool_of({"a", "b"});
  pool.begin_attempt({"a", "b"}, 1);
  CHECK_FALSE(pool.failed("a", "it crashed", 10));
  pool.begin_attempt({"a", "b"}, 11);
  pool.lost("b", "the connection was closed", 15);  // the next one's failure is none of its own
  pool.ready("b", 2, 15);
  REQUIRE(pool.lost("a", "silent for 2.0 s", 20).is_put_out);
  CHECK(pool.take_quarantined().empty());
  pool.begin_attempt({"b"}, 21);
  pool.progressed();
  const std::vector<PutOutNode> out = pool.take_quarantined();
  REQUIRE(out.size() == 1);
  CHECK(out[0].name == "a");
  REQUIRE(out[0].failures.size() == 2);
  CHECK(out[0].failures[0].why == "it crashed");
  CHECK(out[0].failures[0].attempt == 1);
  CHECK(out[0].failures[1].why == "silent for 2.0 s");
  CHECK(out[0].failures[1].attempt == 2);
  CHECK(pool.attempts() == 3);
  CHECK(pool.take_quarantined().empty());
}

TEST_CASE("what the run has put out is used again if it fits in no other way", "[node_pool]") {
  NodePool pool = pool_of({"a", "b", "c"});
  pool.failed("a", "it crashed", 10);
  REQUIRE(pool.failed("a", "it crashed", 20));
  pool.set_quarantined("c", true, false);  // by others
  pool.pardon_if_needed();
  CHECK(pool.usable_ranks() == 2);
  CHECK(node_of(pool, "a").quarantined);
  pool.lost("b", "gone", 30);
  pool.pardon_if_needed();
  CHECK(pool.select(2) == Names{"a"});
  CHECK(node_of(pool, "c").quarantined);
  pool.progressed();
  CHECK(pool.take_quarantined().empty());
}

TEST_CASE("nodes that are new count for a wider attempt once they have settled", "[node_pool]") {
  NodePool pool = pool_of({"a", "b"});
  pool.begin_attempt({"a"}, 0);
  pool.lost("b", "gone", 1);
  pool.ready("b", 2, 10);
  CHECK(pool.settled_ranks(14.9) == 2);
  CHECK(pool.settled_ranks(15) == 4);
  CHECK_FALSE(pool.has_quarantined_member());
  pool.set_quarantined("b", true, false);
  CHECK_FALSE(pool.has_quarantined_member());
  pool.set_quarantined("a", true, false);
  CHECK(pool.has_quarantined_member());
  CHECK(pool.settled_ranks(15) == 0);
}

TEST_CASE("a node is tested once, and again when it has come back", "[node_pool]") {
  NodePool pool = pool_of({"a", "b", "c"});
  CHECK(pool.untested({"a", "b"}) == Names{"a", "b"});
  pool.passed("a", 1);
  CHECK(pool.untested({"a", "b"}) == Names{"b"});
  // Without a result: the nodes of an attempt that has made a step have passed.
  pool.begin_attempt({"a", "b"}, 0);
  pool.stepped();
  CHECK(pool.untested({"a", "b", "c"}) == Names{"c"});
  pool.lost("a", "gone", 1);
  pool.passed("a", 1);  // heard late
  pool.ready("a", 2, 2);
  CHECK(pool.untested({"a", "b"}) == Names{"a"});
}

TEST_CASE("a slow node is named once, and out where a spare takes its place", "[node_pool]") {
  for (const bool has_spare : {false, true}) {
    NodePool pool = pool_of(has_spare ? Names{"a", "b", "c", "d"} : Names{"a", "b", "c"});
    pool.begin_attempt({"a", "b", "c"}, 0);
    for (const char* name : {"a", "b"}) pool.passed(name, 1);
    CHECK(pool.find_slow(6, 1).empty());
    pool.passed("c", 1.3);
    const std::vector<NodePool::Slow> slow = pool.find_slow(6, 1);
    REQUIRE(slow.size() == 1);
    CHECK(slow[0].node == "c");
    CHECK(slow[0].text == "burn-in: products take 1.30 times the median of 3 nodes");
    CHECK(slow[0].is_put_out == has_spare);
    CHECK(pool.find_slow(6, 2).empty());
    CHECK(pool.has_quarantined_member() == has_spare);
    CHECK(pool.settled_ranks(10) == 6);
    pool.progressed();
    const std::vector<PutOutNode> out = pool.take_quarantined();
    REQUIRE(out.size() == (has_spare ? 1 : 0));
    if (has_spare) CHECK(out[0].failures.at(0).kind == NodeEvidence::slow);
  }
}

TEST_CASE("a slow node is out when a spare has come for it, and in as long as it is not slow any more",
          "[node_pool]") {
  NodePool pool = pool_of({"a", "b", "c"});
  pool.begin_attempt({"a", "b", "c"}, 0);
  for (const char* name : {"a", "b"}) pool.passed(name, 1);
  pool.passed("c", 1.3);
  REQUIRE(pool.find_slow(6, 1).size() == 1);
  CHECK(pool.replace_slow(6, 2).empty());
  pool.ready("d", 2, 3);
  const std::vector<NodePool::Slow> replaced = pool.replace_slow(6, 4);
  REQUIRE(replaced.size() == 1);
  CHECK(replaced[0].node == "c");
  CHECK(replaced[0].text == "burn-in: products take 1.30 times the median of 3 nodes");
  CHECK(pool.replace_slow(6, 5).empty());
  CHECK(pool.has_quarantined_member());
  CHECK(pool.select(6) == Names{"a", "b", "d"});
  pool.progressed();
  const std::vector<PutOutNode> out = pool.take_quarantined();
  REQUIRE(out.size() == 1);
  CHECK(out[0].failures.at(0).kind == NodeEvidence::slow);

  // What the steps show.
  NodePool other = pool_of({"a", "b"});
  other.begin_attempt({"a", "b"}, 0);
  CHECK(!other.found_slow("x", "it computes longer", 4, 1));
  const auto found = other.found_slow("a", "it computes longer", 4, 1);
  REQUIRE(found);
  CHECK(!found->is_put_out);
  CHECK(!other.found_slow("a", "it computes longer", 4, 2));  // it is known
  other.not_slow("a");
  other.ready("c", 2, 3);
  CHECK(other.replace_slow(4, 4).empty());
  CHECK(other.found_slow("a", "it computes longer", 4, 5)->is_put_out);
  CHECK(other.replace_slow(4, 6).empty());
  other.set_quarantined("a", false, false);  // a person has lifted it: it is judged anew
  CHECK(other.replace_slow(4, 7).empty());
  // A spare that is slow takes no place.
  NodePool slow_spare = pool_of({"a", "b", "c"});
  slow_spare.begin_attempt({"a", "b"}, 0);
  CHECK(slow_spare.found_slow("c", "slow", 4, 1)->is_put_out);
  CHECK(!slow_spare.found_slow("a", "slow", 4, 2)->is_put_out);
}
