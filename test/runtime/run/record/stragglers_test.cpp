// Goal: in fleets of 64 to 4,096 ranks with noise, a slow rank, a slow disk and a slow link are found, kept
// apart and named, at least 99 of 100 of them, and at least 99 of 100 of what is named is so; nothing is
// named in a fleet that is well. Method: simulated steps: every rank has its own speed, noise in each step,
// and hiccups; it waits for the slowest of its pipeline, and for the slowest pipeline. Faults of known
// kinds at seeded places. The table of injected against found is printed.
#include "runtime/run/record/stragglers.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <set>

#include "runtime/base/json.h"
#include "runtime/run/record/slow_ranks.h"
#include "test/support/seed.h"

using namespace trainctl;

namespace {

constexpr int kRanksOfNode = 8;

std::vector<NodeRanks> fleet_nodes(int ranks) {
  std::vector<NodeRanks> nodes;
  for (int first = 0; first < ranks; first += kRanksOfNode)
    nodes.push_back({fmt::format("n{}", first / kRanksOfNode), first, kRanksOfNode});
  return nodes;
}

/// What is wrong in a fleet.
enum class Fault { none, rank, node, disk, saves, column, links };
const char* const kFaultWords[] = {"none", "rank", "node", "disk", "saves", "column", "links"};

/// A fleet whose ranks compute a step of about one second.
class NoisyFleet {
 public:
  NoisyFleet(int ranks, int stages, uint64_t seed) : ranks_(ranks), stages_(stages), random_(seed) {
    for (int r = 0; r < ranks; ++r) speed_.push_back(std::exp(0.01 * normal_(random_)));
    slower_.assign(size_t(ranks), 1);
    reads_s_.assign(size_t(ranks), 0);
    saves_.assign(size_t(ranks), 1);
    link_s_.assign(size_t(ranks / stages), 0);
  }
  std::vector<double> slower_, reads_s_, saves_, link_s_;  ///< link_s_: of each column
  double all_links_s_ = 0;

  std::vector<RankTimes> step() {
    const size_t each = size_t(ranks_ / stages_);
    const double common = std::exp(0.02 * normal_(random_)), exchange_s = 0.08 * noise(0.05) + all_links_s_;
    std::vector<RankTimes> times(static_cast<size_t>(ranks_));
    std::vector<double> busy_s(times.size()), column_s(each, 0);
    const bool saves = ++steps_ % 4 == 0;
    double longest_s = 0;
    for (size_t r = 0; r < times.size(); ++r) {
      const double hiccup = uniform_(random_) < 0.005 ? 1 + uniform_(random_) : 1;
      // The stages have different work.
      const double work = 1 + 0.2 * double(r / each);
      times[r].data_s = 0.003 * std::abs(normal_(random_)) + reads_s_[r] * noise(0.2);
      times[r].checkpoint_s = saves ? 0.2 * noise(0.1) * saves_[r] : 0;
      busy_s[r] = work * common * speed_[r] * slower_[r] * noise(0.03) * hiccup + times[r].data_s;
      column_s[r % each] = std::max(column_s[r % each], busy_s[r]);
    }
    for (size_t c = 0; c < each; ++c) longest_s = std::max(longest_s, column_s[c] += link_s_[c] * noise(0.1));
    for (size_t r = 0; r < times.size(); ++r) {
      times[r].step_s = longest_s + exchange_s;
      times[r].communication_s = times[r].step_s - busy_s[r];
      times[r].pipeline_s = stages_ > 1 ? column_s[r % each] - busy_s[r] : 0;
    }
    return times;
  }
  int stages() const { return stages_; }

 private:
  double noise(double sigma) { return std::exp(sigma * normal_(random_)); }
  int ranks_, stages_;
  int64_t steps_ = 0;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  std::vector<double> speed_;
};

/// Puts faults into a fleet; returns what must be found, as texts of `found_text`.
std::set<std::string> inject(NoisyFleet& fleet, Fault fault, int ranks, std::mt19937_64& random) {
  std::set<std::string> expected;
  const int nodes = ranks / kRanksOfNode, columns = ranks / fleet.stages();
  const int count = fault == Fault::none ? 0 : fault == Fault::links ? 1 : std::max(1, nodes / 50);
  while (int(expected.size()) < count) {
    const int node = int(random() % uint64_t(nodes)),
              rank = node * kRanksOfNode + int(random() % kRanksOfNode);
    const auto of_node = [&](std::vector<double>& values, double value) {
      std::fill_n(values.begin() + node * kRanksOfNode, kRanksOfNode, value);
    };
    const std::string name = fmt::format("n{}", node);
    switch (fault) {
      case Fault::none: break;
      case Fault::rank:
        if (expected.insert("compute " + name).second) fleet.slower_[size_t(rank)] = 1.1;
        break;
      case Fault::node:
        of_node(fleet.slower_, 1.1);
        expected.insert("compute " + name);
        break;
      case Fault::disk:
        of_node(fleet.reads_s_, 0.3);
        expected.insert("data " + name);
        break;
      case Fault::saves:
        of_node(fleet.saves_, 2.5);
        expected.insert("save " + name);
        break;
      case Fault::column:
        fleet.link_s_[size_t(rank % columns)] = 0.4;
        expected.insert(fmt::format("link {}", rank % columns));
        break;
      case Fault::links:
        fleet.all_links_s_ = 0.4;
        expected.insert("link");
        break;
    }
  }
  return expected;
}

std::string found_text(const Straggler& s, int columns) {
  if (s.kind != StragglerKind::link) return fmt::format("{} {}", word_of(s.kind), s.node);
  return s.ranks.empty() ? "link" : fmt::format("link {}", s.ranks[0] % columns);
}

struct Score {
  int injected = 0, found = 0, wrong = 0;
  double precision() const { return found + wrong == 0 ? 1 : double(found) / double(found + wrong); }
  double recall() const { return injected == 0 ? 1 : double(found) / double(injected); }
};

/// Of one fleet: faults that begin after a while, and what is found at the end.
void score(Score& score, Fault fault, int ranks, int stages, uint64_t seed) {
  NoisyFleet fleet(ranks, stages, seed);
  std::mt19937_64 random(seed ^ 0x9e3779b97f4a7c15);
  const std::vector<NodeRanks> nodes = fleet_nodes(ranks);
  Stragglers stragglers;
  const auto steps = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) stragglers.step(fleet.step(), stages);
  };
  steps(Stragglers::kWindow);
  std::set<std::string> expected = inject(fleet, fault, ranks, random);
  score.injected += int(expected.size());
  steps(Stragglers::kWindow);
  for (const Straggler& found : stragglers.judge(nodes))
    ++(expected.erase(found_text(found, ranks / stages)) ? score.found : score.wrong);
}

}  // namespace

TEST_CASE("slow ranks, disks and links of noisy fleets are found, kept apart and named", "[stragglers]") {
  std::string table = "ranks  stages  fault    injected  found  wrong  precision  recall\n";
  for (const uint64_t seed : test::test_seeds(1)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    for (const auto& [ranks, fleets] : {std::pair{64, 50}, {256, 20}, {1024, 8}, {4096, 2}})
      for (const int stages : {1, ranks == 64 ? 2 : 4}) {
        Score all;
        for (const Fault fault : {Fault::none, Fault::rank, Fault::node, Fault::disk, Fault::saves,
                                  Fault::column, Fault::links}) {
          if ((fault == Fault::column && stages == 1) || (fault == Fault::links && stages > 1)) continue;
          Score of;
          for (int i = 0; i < fleets; ++i)
            score(of, fault, ranks, stages,
                  seed * 1000003 + uint64_t(ranks * 100 + int(fault) * 1000000 + i));
          table += fmt::format("{:5}  {:6}  {:7}  {:8}  {:5}  {:5}  {:9.4f}  {:6.4f}\n", ranks, stages,
                               kFaultWords[int(fault)], of.injected, of.found, of.wrong, of.precision(),
                               of.recall());
          all.injected += of.injected, all.found += of.found, all.wrong += of.wrong;
        }
        INFO(table);
        CHECK(all.precision() >= 0.99);
        CHECK(all.recall() >= 0.99);
      }
  }
  fmt::print("{}", table);
}

TEST_CASE("few ranks: a slow one is named, and of two none", "[stragglers]") {
  for (const int ranks : {2, 4, 8}) {
    Stragglers stragglers;
    for (size_t i = 0; i < Stragglers::kWindow; ++i) {
      std::vector<RankTimes> times(static_cast<size_t>(ranks));
      for (size_t r = 0; r < times.size(); ++r) {
        const double busy_s = (r == 1 ? 1.3 : 1) * (1 + 0.02 * double((i * 7 + r * 3) % 5));
        times[r].communication_s = 2 - busy_s;
        times[r].step_s = 2;
      }
      stragglers.step(times, 1);
    }
    const std::vector<Straggler> found = stragglers.judge({});
    REQUIRE(found.size() == (ranks > 2 ? 1 : 0));
    if (ranks == 2) continue;
    CHECK(found[0].kind == StragglerKind::compute);
    CHECK(found[0].ranks == std::vector{1});
    CHECK(found[0].share == Approx(0.3).epsilon(0.2));  // within the noise
  }
}

TEST_CASE("numbers that did not come, and another number of ranks, are no trouble", "[stragglers]") {
  Stragglers stragglers;
  stragglers.step({}, 1);
  const std::vector<RankTimes> none(8, RankTimes::none());
  for (size_t i = 0; i < Stragglers::kWindow; ++i) stragglers.step(none, 1);
  CHECK(!stragglers.is_due());
  CHECK(stragglers.judge({}).empty());
  NoisyFleet fleet(64, 1, 3), other(32, 2, 4);
  for (size_t i = 0; i < Stragglers::kLeastReports; ++i) {
    std::vector<RankTimes> times = fleet.step();
    times[i % 64] = RankTimes::none();
    stragglers.step(times, 1);
  }
  CHECK(stragglers.is_due());
  CHECK(stragglers.judge({}).empty());
  CHECK(!stragglers.is_due());
  stragglers.step(other.step(), 2);  // another mesh: what was before counts no more
  CHECK(!stragglers.is_due());
}

TEST_CASE("a slow node is reported once, and once when it is over", "[stragglers]") {
  SlowRanks slow;
  NoisyFleet fleet(64, 1, 5);
  std::vector<SlowRanks::Notice> all;
  int64_t step = 1000;
  double pace_s = 0.02;
  const auto steps = [&](size_t count) {
    for (size_t i = 0; i < count; ++i)
      for (auto& notice : slow.step(
               ++step, fleet.step(), 1, [] { return fleet_nodes(64); }, pace_s))
        all.push_back(notice);
  };
  steps(100);
  CHECK(all.empty());
  fleet.slower_[12] = fleet.slower_[13] = 1.5;
  steps(100);  // two seconds of short steps
  CHECK(all.empty());
  pace_s = 1;
  steps(100);
  REQUIRE(all.size() == 1);
  CHECK(all[0].kind == EventKind::slow_ranks);
  const Json event = parse_json(all[0].json);
  CHECK(event["node"] == "n1");
  CHECK(event["cause"] == "compute");
  CHECK(event["ranks"] == Json{12, 13});
  CHECK(event["share"].get<double>() == Approx(0.5).epsilon(0.1));
  CHECK(all[0].line.starts_with(" ! n1, ranks 12, 13: computing takes "));
  fleet.slower_[12] = fleet.slower_[13] = 1;
  steps(200);
  REQUIRE(all.size() == 2);
  CHECK(all[1].kind == EventKind::slow_ranks_over);
  CHECK(parse_json(all[1].json)["node"] == "n1");
  fleet.slower_[12] = 1.5;
  steps(100);
  CHECK(all.size() == 3);
  slow.forget();
  steps(100);
  CHECK(all.size() == 4);
}
