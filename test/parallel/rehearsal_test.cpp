// Goal: a communicator that rehearses moves nothing, waits for no peer and notes whom it would meet, and is
// the real one before and after.
// Method: two rank threads of which one alone rehearses an exchange and a sum; then both exchange.
#include <catch2/catch.hpp>
#include <thread>

#include "parallel/rehearsal.h"

using namespace trainctl;
using namespace trainctl::parallel;

TEST_CASE("a rehearsing communicator waits for no peer and moves nothing") {
  auto world = make_thread_world(2, 20.0);
  std::vector<int> received(2, -1);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      bool rehearsing = rank == 0;
      std::set<int> peers;
      const auto comm = make_rehearsable(std::move(world[size_t(rank)]), rehearsing, peers);
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
        CHECK(peers == std::set<int>{peer});
        CHECK(comm->sent_bytes() == 0);
        rehearsing = false;
      }
      comm->exchange_and_wait(transfers, "exchange");
      received[size_t(rank)] = theirs;
    });
  for (std::thread& thread : ranks) thread.join();
  CHECK(received == std::vector<int>{11, 10});
}
