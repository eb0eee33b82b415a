// Goal: a communicator that rehearses moves nothing, waits for no peer and notes what it would move, and is
// the real one before and after.
// Method: two rank threads of which one alone rehearses an exchange and a sum; then both exchange.
#include <catch2/catch.hpp>
#include <thread>

#include "parallel/rehearsal.h"
#include "runtime/base/error.h"

using namespace trainctl;
using namespace trainctl::parallel;

TEST_CASE("a rehearsing communicator waits for no peer and moves nothing") {
  auto world = make_thread_world(2, 600.0);
  std::vector<int> received(2, -1);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      bool rehearsing = rank == 0;
      Rehearsed rehearsed;
      const auto comm = make_rehearsable(std::move(world[size_t(rank)]), rehearsing, rehearsed);
      const int mine = 10 + rank, peer = 1 - rank;
      int theirs = -1;
      const Transfer transfers[] = {{Transfer::send, peer, const_cast<int*>(&mine), sizeof mine},
                                    {Transfer::receive, peer, &theirs, sizeof theirs}};
      if (rehearsing) {
        Ticket ticket = comm->exchange(transfers);
        CHECK(comm->test(ticket));
        comm->wait(ticket, "rehearse");
        comm->exchange_and_wait(transfers, "rehearse");
        CHECK(theirs == -1);
        REQUIRE(rehearsed.size() == 1);
        CHECK(rehearsed.at(peer).sent.count == 2);
        CHECK(rehearsed.at(peer).sent == rehearsed.at(peer).received);
        CHECK(comm->sent_bytes() == 0);
        rehearsing = false;
      }
      comm->exchange_and_wait(transfers, "exchange");
      received[size_t(rank)] = theirs;
    });
  for (std::thread& thread : ranks) thread.join();
  CHECK(received == std::vector<int>{11, 10});
}

namespace {

/// What each rank's connect() throws, after it rehearsed `sizes[rank]` to the other and got sizes[1 - rank],
/// but rank 1 expects `expected`.
std::vector<std::string> connect_after(const std::vector<size_t> (&sizes)[2],
                                       const std::vector<size_t>& expected) {
  auto world = make_thread_world(2, 600.0);
  std::vector<std::string> errors(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      bool rehearsing = true;
      Rehearsed rehearsed;
      const auto comm = make_rehearsable(std::move(world[size_t(rank)]), rehearsing, rehearsed);
      std::vector<char> memory(100);
      const int peer = 1 - rank;
      for (const size_t size : sizes[rank]) {
        const Transfer t{Transfer::send, peer, memory.data(), size, 1};
        (void)comm->exchange({&t, 1});
      }
      for (const size_t size : rank == 1 ? expected : sizes[1]) {
        const Transfer t{Transfer::receive, peer, memory.data(), size, 1};
        comm->exchange_and_wait({&t, 1}, "rehearse");
      }
      rehearsing = false;
      try {
        comm->connect({&peer, 1});
      } catch (const Error& e) {
        errors[size_t(rank)] = e.what();
      }
    });
  for (std::thread& thread : ranks) thread.join();
  return errors;
}

}  // namespace

TEST_CASE("ranks that rehearsed different messages are named with both sides when they connect") {
  const std::vector<size_t> sizes[2] = {{8, 16, 0}, {40}};
  CHECK(connect_after(sizes, {8, 16}) == std::vector<std::string>(2));
  const auto one_less = connect_after(sizes, {8});
  CHECK_THAT(one_less[0],
             Catch::StartsWith("world: in a rehearsed step rank 0 sends 2 messages of 24 bytes in all to "
                               "rank 1, which receives 1 of 8 bytes: the two ranks run different programs"));
  CHECK(one_less[1] == one_less[0]);
  const auto other_order = connect_after(sizes, {16, 8});
  CHECK_THAT(other_order[0], Catch::Contains("which receives 2 of 24 bytes, in another order of sizes"));
}
