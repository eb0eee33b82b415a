#include "runtime/machine/links.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <set>
#include <span>

#include "runtime/base/file_system.h"
#include "runtime/base/philox.h"
#include "runtime/machine/bundle.h"

namespace trainctl {
namespace {

constexpr size_t kLinkBytes = size_t{4} << 20;
constexpr int kExchangesOfLink = 6;
/// Ranks of a job do not all start at once.
constexpr double kLinkDeadlineS = 60;

/// What a rank sends in a round.
void fill_link_bytes(std::vector<std::byte>& bytes, int rank, size_t round) {
  const uint64_t first = Philox(20260103, RandomPurpose::kTest, uint64_t(rank)).bits64(round);
  for (size_t i = 0; i < bytes.size() / 8; ++i) {
    const uint64_t word = first + i * 0x9E3779B97F4A7C15u;
    std::memcpy(&bytes[i * 8], &word, 8);
  }
}

/// With an empty seat for an odd number.
int seats_of(int ranks) { return ranks + ranks % 2; }

/// The first of the rounds in which the last seat stays and the others move on by one.
std::vector<PairRound> circle_rounds(int ranks, int count) {
  const int seats = seats_of(ranks);
  std::vector<PairRound> rounds;
  for (int round = 0; round < count; ++round) {
    PairRound peers(size_t(ranks), -1);
    for (int i = 0; i < seats / 2; ++i) {
      const int a = i == 0 ? seats - 1 : (round + i) % (seats - 1);
      const int b = (round + seats - 1 - i) % (seats - 1);
      if (a < ranks && b < ranks) peers[size_t(a)] = b, peers[size_t(b)] = a;
    }
    rounds.push_back(std::move(peers));
  }
  return rounds;
}

/// What a rank reports of a round; of its names only as much as has room.
struct RoundReport {
  double bytes_per_s = 0;
  int64_t wrong_bits = 0;
};
constexpr size_t kNameBytes = 256, kHeadBytes = 2 * kNameBytes;

}  // namespace

std::vector<PairRound> every_pair(int ranks) { return circle_rounds(ranks, seats_of(ranks) - 1); }

std::vector<PairRound> few_pairs(int ranks) {
  return circle_rounds(ranks, int(std::bit_width(unsigned(ranks - 1))));
}

std::vector<std::string> hosts_of(const std::vector<std::string>& names,
                                  const std::vector<std::string>& machines) {
  const std::set<std::string> apart(names.begin(), names.end()), real(machines.begin(), machines.end());
  std::set<std::pair<std::string, std::string>> pairs;
  for (size_t rank = 0; rank < names.size(); ++rank) pairs.insert({names[rank], machines[rank]});
  return pairs.size() == apart.size() && pairs.size() == real.size() ? names : machines;
}

LinkResult measure_links(parallel::Communicator& world, const std::string& host,
                         const std::vector<PairRound>& rounds, const std::string& machine) {
  using parallel::Transfer;
  const int self = world.rank();
  std::vector<std::byte> sent(kLinkBytes), received(kLinkBytes), expected(kLinkBytes);
  std::vector<std::byte> report(kHeadBytes + rounds.size() * sizeof(RoundReport));
  std::memcpy(report.data(), host.data(), std::min(host.size(), kNameBytes - 1));
  const std::string& own = machine.empty() ? host : machine;
  std::memcpy(report.data() + kNameBytes, own.data(), std::min(own.size(), kNameBytes - 1));
  for (size_t round = 0; round < rounds.size(); ++round) {
    const int peer = rounds[round][size_t(self)];
    RoundReport found;
    if (peer >= 0) {
      fill_link_bytes(sent, self, round);
      fill_link_bytes(expected, peer, round);
      const auto exchange = [&](void* into, size_t bytes) {
        const Transfer both[] = {{Transfer::send, peer, sent.data(), bytes},
                                 {Transfer::receive, peer, into, bytes}};
        world.exchange_and_wait(both, "measure a link");
      };
      double best_s = 0;
      for (int i = 0; i < kExchangesOfLink; ++i) {
        std::memset(received.data(), 0xee, received.size());  // nothing is left of the exchange before
        uint64_t sign = 0;
        exchange(&sign, sizeof sign);  // the peer is there
        const double began_s = real_clock().monotonic_s();
        exchange(received.data(), kLinkBytes);
        const double took_s = real_clock().monotonic_s() - began_s;
        best_s = i == 0 ? took_s : std::min(best_s, took_s);
        if (received != expected) ++found.wrong_bits;
      }
      found.bytes_per_s = double(kLinkBytes) / std::max(best_s, 1e-9);
    }
    std::memcpy(&report[kHeadBytes + round * sizeof found], &found, sizeof found);
  }
  std::vector<std::byte> all(self == 0 ? report.size() * size_t(world.size()) : 0);
  parallel::gather(world, 0, report.data(), all.data(), report.size());
  if (self != 0) return {};
  LinkResult result{.hosts = {}, .rounds = int(rounds.size()), .links = {}};
  const auto report_of = [&](int rank) { return all.data() + size_t(rank) * report.size(); };
  std::vector<std::string> names, machines;
  for (int rank = 0; rank < world.size(); ++rank) {
    names.emplace_back(reinterpret_cast<const char*>(report_of(rank)));
    machines.emplace_back(reinterpret_cast<const char*>(report_of(rank) + kNameBytes));
  }
  result.hosts = hosts_of(names, machines);
  for (size_t round = 0; round < rounds.size(); ++round)
    for (int a = 0; a < world.size(); ++a) {
      const int b = rounds[round][size_t(a)];
      if (b <= a) continue;
      RoundReport of_a, of_b;
      std::memcpy(&of_a, report_of(a) + kHeadBytes + round * sizeof of_a, sizeof of_a);
      std::memcpy(&of_b, report_of(b) + kHeadBytes + round * sizeof of_b, sizeof of_b);
      result.links.push_back({.a = a,
                              .b = b,
                              .bytes_per_s = std::min(of_a.bytes_per_s, of_b.bytes_per_s),
                              .wrong_bits = of_a.wrong_bits + of_b.wrong_bits > 0});
    }
  return result;
}

std::optional<LinkResult> measure_links_of_job(const std::string& host) {
  enter_bundle(own_bundle());
  parallel::MpiWorld mpi;
  const auto world = mpi.world(kLinkDeadlineS);
  const int ranks = world->size();
  const bool is_first = world->rank() == 0;
  char machine[HOST_NAME_MAX + 1] = "";
  ::gethostname(machine, sizeof machine - 1);
  const LinkResult result =
      measure_links(*world, host, ranks <= kMostForEveryPair ? every_pair(ranks) : few_pairs(ranks), machine);
  mpi.finalize();
  return is_first ? std::optional(result) : std::nullopt;
}

}  // namespace trainctl
