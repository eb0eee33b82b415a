// Goal: the rounds of a check of links meet as they say, and each link has a rate, and bits that arrive as
// they were sent. Method: all numbers of ranks up to 40; ranks that are threads, one of which may send
// wrong bits.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/machine/links.h"

using namespace trainctl;

namespace {

/// Each rank meets at most one other in a round, which meets it. Returns how often each pair meets.
std::map<std::pair<int, int>, int> meetings(const std::vector<PairRound>& rounds, int ranks) {
  std::map<std::pair<int, int>, int> times;
  for (const PairRound& round : rounds) {
    REQUIRE(int(round.size()) == ranks);
    for (int a = 0; a < ranks; ++a) {
      const int b = round[size_t(a)];
      if (b < 0) continue;
      REQUIRE(b < ranks);
      REQUIRE(b != a);
      CHECK(round[size_t(b)] == a);
      if (a < b) ++times[{a, b}];
    }
  }
  return times;
}

TEST_CASE("every pair of ranks meets once, in as few rounds as possible") {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    const std::vector<PairRound> rounds = every_pair(ranks);
    INFO(ranks << " ranks");
    CHECK(int(rounds.size()) == (ranks == 1 ? 1 : ranks % 2 == 0 ? ranks - 1 : ranks));
    const auto times = meetings(rounds, ranks);
    CHECK(int(times.size()) == ranks * (ranks - 1) / 2);
    for (const auto& [pair, count] : times) CHECK(count == 1);
  }
}

TEST_CASE("a few pairs join all ranks in log2 rounds") {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    const std::vector<PairRound> rounds = few_pairs(ranks);
    INFO(ranks << " ranks");
    CHECK(int(rounds.size()) == int(std::bit_width(unsigned(ranks - 1))));
    const auto times = meetings(rounds, ranks);
    std::set<int> joined = {0};
    for (size_t before = 0; before != joined.size();) {
      before = joined.size();
      for (const auto& [pair, count] : times)
        if (joined.contains(pair.first) || joined.contains(pair.second))
          joined.insert({pair.first, pair.second});
    }
    CHECK(int(joined.size()) == ranks);
  }
}

TEST_CASE("of a few pairs each rank has about log2 links, all with other ranks") {
  // So a slow rank has only slow links, and each of its peers one.
  for (const int ranks : {129, 130, 257, 1000}) {
    const std::vector<PairRound> rounds = few_pairs(ranks);
    std::vector<int> links(size_t(ranks), 0);
    for (const auto& [pair, count] : meetings(rounds, ranks)) {
      CHECK(count == 1);
      ++links[size_t(pair.first)], ++links[size_t(pair.second)];
    }
    INFO(ranks << " ranks");
    CHECK(*std::min_element(links.begin(), links.end()) >= int(rounds.size()) - ranks % 2);
  }
}

TEST_CASE("hosts have the names of runs where each machine has one of its own") {
  using Names = std::vector<std::string>;
  CHECK(hosts_of({"n0", "n0", "n1"}, {"a", "a", "b"}) == Names{"n0", "n0", "n1"});
  // The environment of one node came to the other.
  CHECK(hosts_of({"n0", "n0", "n0"}, {"a", "a", "b"}) == Names{"a", "a", "b"});
  CHECK(hosts_of({"n0", "n1", "n1"}, {"a", "a", "b"}) == Names{"a", "a", "b"});
}

TEST_CASE("each link between ranks has a rate, and its bytes arrive as they were sent") {
  for (const int ranks : {1, 2, 3, 4}) {
    auto world = parallel::make_thread_world(ranks, 600);
    LinkResult result;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        const std::string host = "node" + std::to_string(rank / 2);
        LinkResult own = measure_links(*world[size_t(rank)], host, every_pair(ranks));
        if (rank == 0) result = std::move(own);
      });
    for (std::thread& thread : threads) thread.join();
    REQUIRE(int(result.hosts.size()) == ranks);
    CHECK(result.hosts.front() == "node0");
    CHECK(result.hosts.back() == (ranks > 2 ? "node1" : "node0"));
    CHECK(int(result.links.size()) == ranks * (ranks - 1) / 2);
    for (const LinkRate& link : result.links) {
      CHECK(link.a < link.b);
      CHECK(link.bytes_per_s > 0);
      CHECK_FALSE(link.wrong_bits);
    }
  }
}

/// Transfers the first of its long messages, and then none.
struct Dropping final : parallel::Communicator {
  explicit Dropping(parallel::Communicator& whole) : whole_(whole) {}
  int rank() const override { return whole_.rank(); }
  int size() const override { return whole_.size(); }
  const std::string& name() const override { return whole_.name(); }
  parallel::Ticket exchange(std::span<const parallel::Transfer> transfers, kernels::Stream* after) override {
    return whole_.exchange(transfers, after);
  }
  bool test(parallel::Ticket& ticket) override { return whole_.test(ticket); }
  void wait(parallel::Ticket& ticket, const char* what) override { whole_.wait(ticket, what); }
  void exchange_and_wait(std::span<const parallel::Transfer> transfers, const char* what) override {
    if (transfers[0].bytes > 1000 && long_++ > 0) return;
    whole_.exchange_and_wait(transfers, what);
  }
  std::unique_ptr<Communicator> subgroup(const parallel::Subgroup& group) override {
    return whole_.subgroup(group);
  }
  std::unique_ptr<Communicator> twin() override { return whole_.twin(); }
  int world_rank(int r) const override { return whole_.world_rank(r); }
  double deadline_s() const override { return whole_.deadline_s(); }
  void set_deadline(double seconds) override { whole_.set_deadline(seconds); }
  double waited_s() const override { return whole_.waited_s(); }
  uint64_t sent_bytes() const override { return whole_.sent_bytes(); }

 private:
  parallel::Communicator& whole_;
  int long_ = 0;
};

TEST_CASE("right bytes that an earlier exchange left do not hide a lost one") {
  auto world = parallel::make_thread_world(2, 600);
  std::thread other([&] {
    Dropping end(*world[1]);
    (void)measure_links(end, "b", every_pair(2));
  });
  Dropping end(*world[0]);
  const LinkResult result = measure_links(end, "a", every_pair(2));
  other.join();
  REQUIRE(result.links.size() == 1);
  CHECK(result.links[0].wrong_bits);
}

TEST_CASE("bytes that arrive otherwise than they were sent are wrong") {
  // The two ranks disagree about the round, and so about what they send.
  auto world = parallel::make_thread_world(2, 600);
  LinkResult result;
  std::thread other([&] { (void)measure_links(*world[1], "b", {{-1, -1}, {1, 0}}); });
  result = measure_links(*world[0], "a", {{1, 0}, {-1, -1}});
  other.join();
  REQUIRE(result.links.size() == 1);
  CHECK(result.links[0].wrong_bits);
}

}  // namespace
