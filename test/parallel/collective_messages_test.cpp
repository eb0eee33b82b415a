// Goal: the messages of the collectives on the host fit together at any number of ranks, and a rank sends and
// receives a number of them that grows with the logarithm of the number of ranks.
// Method: each rank of 1 to 70, 512, 1000 and 4096 runs the collective on the tally twin, which moves nothing
// and counts; what all ranks send must be what all ranks receive. The bytes of small worlds are in
// collectives_test.cpp.
#include <bit>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>

#include "parallel/tally.h"

namespace trainctl::test {
namespace {

using parallel::Communicator, parallel::TrafficGroup, parallel::TrafficTally, parallel::Way;

struct Most {
  uint64_t sent = 0, received = 0;  // messages of one rank
};

/// Runs `collective` as each rank of `size`; the messages must pair up. Returns the most of any rank.
Most messages_of(int size, const std::function<void(Communicator&)>& collective) {
  std::map<std::tuple<int, int, size_t>, int64_t> open;  // from, to, bytes: sent less received
  Most most;
  for (int rank = 0; rank < size; ++rank) {
    TrafficTally tally;
    const auto comm = parallel::make_tally_communicator(TrafficGroup::other, rank, size, tally);
    collective(*comm);
    uint64_t sent = 0, received = 0;
    for (const auto& [key, count] : tally.messages) {
      const bool sends = key.way == Way::send;
      (sends ? sent : received) += count;
      open[sends ? std::tuple(rank, key.peer, key.bytes) : std::tuple(key.peer, rank, key.bytes)] +=
          sends ? int64_t(count) : -int64_t(count);
    }
    most = {std::max(most.sent, sent), std::max(most.received, received)};
  }
  for (const auto& [message, difference] : open)
    if (difference != 0)
      FAIL_CHECK("of " << size << " ranks, " << std::get<0>(message) << " to " << std::get<1>(message) << ", "
                       << std::get<2>(message) << " bytes: sent less received is " << difference);
  return most;
}

std::vector<int> sizes() {
  std::vector<int> result(70);
  std::iota(result.begin(), result.end(), 1);
  for (const int many : {512, 1000, 4096}) result.push_back(many);
  return result;
}

/// log2, rounded up.
uint64_t rounds(int size) { return uint64_t(std::bit_width(unsigned(size - 1))); }

}  // namespace

TEST_CASE("sums and barriers take a message a round and rank") {
  for (const int size : sizes()) {
    CAPTURE(size);
    const uint64_t limit = rounds(size) + (std::has_single_bit(unsigned(size)) ? 0 : 1);
    for (const Most& most : {messages_of(size,
                                         [](Communicator& comm) {
                                           int64_t values[3] = {};
                                           parallel::all_sum(comm, values);
                                         }),
                             messages_of(size, [](Communicator& comm) { parallel::barrier(comm); })}) {
      CHECK(most.sent <= limit);
      CHECK(most.received <= limit);
    }
  }
}

TEST_CASE("gathers and broadcasts are trees") {
  for (const int size : sizes())
    for (const int root : {0, size / 2, size - 1}) {
      CAPTURE(size, root);
      const Most broadcast = messages_of(size, [root](Communicator& comm) {
        int64_t value = 0;
        parallel::broadcast(comm, root, &value, sizeof value);
      });
      CHECK(broadcast.sent <= rounds(size));
      CHECK(broadcast.received <= 1);
      const Most gather = messages_of(size, [root](Communicator& comm) {
        const int64_t own = 0;
        std::vector<int64_t> all(size_t(comm.rank() == root ? comm.size() : 0));
        parallel::gather(comm, root, &own, all.data(), sizeof own);
      });
      CHECK(gather.sent <= 1);
      CHECK(gather.received <= rounds(size));
    }
}

}  // namespace trainctl::test
