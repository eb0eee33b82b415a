// Goal: of ranks that all wait alike in a step, the waits of a trace tell which link between two of them is
// slow; a rank that computes longer is no slow link, and noise is none. Method: simulated steps of
// data-parallel groups: ranks that begin at noisy times exchange by halving (one peer a round) or with all
// others at once, over links of which some take longer. The table of injected against found is exact.
#include "runtime/observe/trace/slow_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <set>

#include "test/support/seed.h"

using namespace trainctl;
using namespace trainctl::trace;

namespace {

using LinkSet = std::set<std::pair<int, int>>;

enum class LinkFault { none, late_rank, one_link, two_links, one_node };
constexpr LinkFault kLinkFaults[] = {LinkFault::none, LinkFault::late_rank, LinkFault::one_link,
                                     LinkFault::two_links, LinkFault::one_node};

/// A data-parallel group of a run that is nothing else. Steps compute for about 100 ms; a message takes about
/// 2 ms, on a slow link 25 ms.
class LinkedRanks {
 public:
  LinkedRanks(int ranks, uint64_t seed) : ranks_(ranks), random_(seed) {
    for (int r = 0; r < ranks; ++r) {
      RankTrace trace;
      trace.recording.rank = r;
      trace.recording.ranks = ranks;
      SpanGroup group{.name = "dp group of stage 0", .size = ranks, .own = r, .members = {}};
      for (int peer = 0; peer < ranks; ++peer) group.members.push_back(peer);
      trace.recording.groups.push_back(group);
      traces_.push_back(trace);
    }
    now_s_.assign(size_t(ranks), 1);
    late_.assign(size_t(ranks), 1);
  }
  std::vector<double> late_;  ///< of each rank, how many times longer it computes
  LinkSet slow_;

  void step(bool by_halving) {
    ++step_;
    const std::vector<double> began_s = now_s_;
    for (int r = 0; r < ranks_; ++r) now_s_[size_t(r)] += 0.1 * late_[size_t(r)] * noise(0.03);
    by_halving ? halve() : exchange_with_all();
    // The step ends when all have the sum of its losses.
    const double end_s = *std::max_element(now_s_.begin(), now_s_.end());
    for (int r = 0; r < ranks_; ++r) {
      add(r, {.kind = SpanKind::step}, began_s[size_t(r)], end_s);
      now_s_[size_t(r)] = end_s;
    }
  }
  std::vector<RankTrace> traces() const {
    std::vector<RankTrace> placed;
    for (const RankTrace& t : traces_) placed.push_back(place(t.recording, t.node, ClockAlignment()));
    return placed;
  }
  void on_nodes_of(int ranks) {
    for (int r = 0; r < ranks_; ++r) traces_[size_t(r)].node = fmt::format("n{}", r / ranks);
  }

 private:
  double noise(double sigma) { return std::exp(sigma * normal_(random_)); }
  double message_s(int a, int b) {
    return (slow_.contains({std::min(a, b), std::max(a, b)}) ? 0.025 : 0.002) * noise(0.1);
  }
  void halve() {
    for (int bit = 1; bit < ranks_; bit *= 2) {
      const std::vector<double> from_s = now_s_;
      for (int r = 0; r < ranks_; ++r) {
        const int peer = r ^ bit;
        if (r > peer) continue;
        const double end_s = std::max(from_s[size_t(r)], from_s[size_t(peer)]) + message_s(r, peer);
        for (const auto& [own, other] : {std::pair{r, peer}, {peer, r}})
          exchanged(own, uint64_t(1) << other, uint64_t(1) << other, end_s);
      }
    }
  }
  void exchange_with_all() {
    const std::vector<double> from_s = now_s_;
    std::vector<double> end_s = from_s;
    std::vector<int> last(size_t(ranks_), 0);
    for (int r = 0; r < ranks_; ++r)
      for (int peer = r + 1; peer < ranks_; ++peer) {
        const double at_s = std::max(from_s[size_t(r)], from_s[size_t(peer)]) + message_s(r, peer);
        for (const auto& [own, other] : {std::pair{r, peer}, {peer, r}})
          if (at_s > end_s[size_t(own)]) end_s[size_t(own)] = at_s, last[size_t(own)] = other;
      }
    const uint64_t all = ranks_ == 64 ? ~uint64_t(0) : (uint64_t(1) << ranks_) - 1;
    for (int r = 0; r < ranks_; ++r)
      exchanged(r, all & ~(uint64_t(1) << r), uint64_t(1) << last[size_t(r)], end_s[size_t(r)]);
  }
  /// The rank waits until then.
  void exchanged(int rank, uint64_t peers, uint64_t last, double end_s) {
    double& now_s = now_s_[size_t(rank)];
    add(rank, {.peers = last, .kind = SpanKind::waited, .group = 0}, now_s, end_s);
    add(rank, {.peers = peers, .kind = SpanKind::exchange, .group = 0}, now_s, end_s);
    now_s = end_s;
  }
  void add(int rank, Span span, double begin_s, double end_s) {
    span.begin_ns = int64_t(begin_s * 1e9), span.end_ns = int64_t(end_s * 1e9);
    span.step = step_;
    traces_[size_t(rank)].recording.spans.push_back(span);
  }

  const int ranks_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<RankTrace> traces_;
  std::vector<double> now_s_;
  int64_t step_ = 0;
};

/// Links over which a fault can be seen: of ranks that exchange.
LinkSet links_of(int ranks, bool by_halving, int rank) {
  LinkSet links;
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != rank && (!by_halving || std::has_single_bit(unsigned(peer ^ rank))))
      links.insert({std::min(rank, peer), std::max(rank, peer)});
  return links;
}

LinkSet found_links(const std::vector<RankTrace>& traces) {
  LinkSet found;
  for (const SlowLink& link : slow_links(traces)) CHECK(found.insert({link.first, link.second}).second);
  return found;
}

}  // namespace

TEST_CASE("a slow link of a data-parallel group is found by its two ranks, a late rank is none",
          "[slow_links]") {
  for (const uint64_t seed : test::test_seeds(1)) {
    INFO("TRAINCTL_TEST_SEED=" << seed);
    std::mt19937_64 random(seed);
    for (const bool by_halving : {true, false})
      for (const int ranks : {6, 8, 16, 32, 64}) {
        if (by_halving && !std::has_single_bit(unsigned(ranks))) continue;
        for (const LinkFault fault : kLinkFaults) {
          CAPTURE(by_halving, ranks, int(fault));
          if (fault == LinkFault::two_links && ranks < 16) continue;  // half of the pairs of a round
          LinkedRanks fleet(ranks, random());
          const int rank = int(random() % uint64_t(ranks));
          const LinkSet own = links_of(ranks, by_halving, rank);
          const auto link = std::next(own.begin(), std::ptrdiff_t(random() % own.size()));
          if (fault == LinkFault::late_rank) fleet.late_[size_t(rank)] = 1.5;
          if (fault == LinkFault::one_link || fault == LinkFault::two_links) fleet.slow_.insert(*link);
          // Of other ranks.
          if (fault == LinkFault::two_links)
            for (const auto& other : links_of(ranks, by_halving, (link->second + 1) % ranks))
              if (fleet.slow_.size() < 2 && other.first != link->first && other.second != link->second &&
                  other.first != link->second && other.second != link->first)
                fleet.slow_.insert(other);
          if (fault == LinkFault::one_node) fleet.slow_ = own;
          for (int i = 0; i < 5; ++i) fleet.step(by_halving);
          // Of an exchange with all, a rank knows what came last.
          if (fault == LinkFault::one_node && !by_halving)
            CHECK(std::ranges::includes(own, found_links(fleet.traces())));
          else
            CHECK(found_links(fleet.traces()) == fleet.slow_);
        }
      }
  }
}

TEST_CASE("ranks on one node have no link, and what is found is a sentence", "[slow_links]") {
  LinkedRanks fleet(16, 1);
  fleet.on_nodes_of(6);  // ranks 4 to 7 exchange with the next but three, of their node or of another
  for (int r = 0; r < 16; ++r)
    for (int peer = r + 1; peer < 16; ++peer)
      if (r / 6 != peer / 6) fleet.slow_.insert({r, peer});
  for (int i = 0; i < 3; ++i) fleet.step(true);
  CHECK(found_links(fleet.traces()).empty());
  LinkedRanks pairs(16, 1);
  pairs.on_nodes_of(2);
  pairs.slow_ = {{4, 5}, {4, 6}};
  for (int i = 0; i < 3; ++i) pairs.step(true);
  CHECK(found_links(pairs.traces()) == LinkSet{{4, 6}});
  const SlowLink link{.first = 3,
                      .second = 11,
                      .wait_s = 0.025,
                      .usual_s = 0.002,
                      .share = 0.2,
                      .first_node = "n0",
                      .second_node = ""};
  CHECK(link.text() ==
        "ranks 3 (n0) and 11 wait for each other for 25.0 ms of a step, pairs like them for "
        "2.0 ms: the link between them is slow");
}

TEST_CASE("without waits, pairs or steps no link is slow", "[slow_links]") {
  CHECK(slow_links({}).empty());
  LinkedRanks two(2, 1), four(4, 1);
  two.slow_ = {{0, 1}};
  two.step(true);
  four.slow_ = {{0, 1}};
  four.step(true);
  CHECK(slow_links(two.traces()).empty());
  CHECK(slow_links(four.traces()).empty());  // of two pairs neither is usual
}
