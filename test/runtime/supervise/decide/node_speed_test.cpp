// Goal: a node with a core that is 30 % slower is found, and noise of 5 % never looks like one.
// Method: tables of nodes, each number at its extremes; then seeded noise on many fleets.
#include "runtime/supervise/decide/node_speed.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "runtime/base/philox.h"
#include "test/support/seed.h"

using namespace trainctl;

namespace {

/// "n2 1.43" of nodes n0, n1, ... that take these times.
std::string slow_of(const std::vector<double>& times) {
  std::vector<NodeSpeed> nodes;
  for (const double time : times) nodes.push_back({fmt::format("n{}", nodes.size()), time});
  std::string text;
  for (const SlowNode& slow : slow_nodes(nodes))
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", slow.node, slow.times_median);
  return text;
}

}  // namespace

TEST_CASE("which nodes are slow", "[node_speed]") {
  const struct {
    std::vector<double> times;
    const char* slow;
  } kTable[] = {
      {{}, ""},
      {{1}, ""},
      {{1, 10}, ""},  // of two, none is slow
      {{1, 1, 1.3}, "n2 1.30"},
      {{1.3, 1, 1}, "n0 1.30"},
      {{1.05, 0.95, 1.3}, "n2 1.24"},
      {{1.05, 1.05, 1.05, 1.3 * 0.95}, "n3 1.18"},  // the worst noise against it
      {{0.95, 0.95, 1.05}, ""},                     // the worst noise alone
      {{0.95, 0.95, 0.95, 0.95, 1.05, 1.05, 1.05}, ""},
      {{1, 1, 1, 1.3, 1.4}, "n3 1.30, n4 1.40"},
      {{1, 1, 1.3, 1.3}, "n2 1.30, n3 1.30"},
      {{1, 1.3, 1.3}, ""},          // most are so
      {{1, 1, 0, 1.3}, "n3 1.30"},  // one was not measured
      {{1, 0, 0, 1.3}, ""},
      {{0.5, 1, 1, 1}, ""},  // a fast one is no reason
      {{1e-3, 1e-3, 1e-3, 1e-3, 100}, "n4 100000.00"},
  };
  for (const auto& row : kTable) CHECK(slow_of(row.times) == row.slow);
}

TEST_CASE("noise of 5 % never names a node, and the slow one of a fleet always", "[node_speed]") {
  for (const uint64_t seed : test::test_seeds(200)) {
    const Philox random(seed, RandomPurpose::kTest);
    uint64_t draw = 0;
    const auto noise = [&] { return 0.95 + 0.1 * double(random.bits64(draw++) % 10001) / 10000; };
    const size_t count = 3 + size_t(random.bits64(draw++) % 200);
    std::vector<double> times;
    for (size_t i = 0; i < count; ++i) times.push_back(2e-3 * noise());
    INFO("TRAINCTL_TEST_SEED=" << seed << ", " << count << " nodes");
    CHECK(slow_of(times) == "");
    const size_t slow = size_t(random.bits64(draw++) % count);
    times[slow] = 2e-3 * 1.3 * noise();
    CHECK(slow_of(times).starts_with(fmt::format("n{} ", slow)));
    CHECK(slow_of(times).find(',') == std::string::npos);
  }
}
