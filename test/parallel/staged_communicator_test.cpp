// Goal: transfers through staging memory carry every byte whatever the size of a piece, with many of them in flight and more than
// fit into the staging memory; a peer that does not come is named; the staging memory grows only while the exchanges are new.
// Method: rank threads on the reference backend; sizes around the borders of pieces; exchanges whose waits come in another order.
// (communicator_test and collectives_test run their checks through staging memory, too, and so does mpi_ranks under mpirun.)
#include <catch2/catch.hpp>

#include "parallel/staging_pool.h"
#include "test/parallel/mpi/transport_checks.h"
#include "test/parallel/rank_threads.h"

namespace trainctl::test {
namespace {

constexpr size_t kPieceBytes = 1000;

void on_staged_ranks(int size, double deadline_s, size_t piece_bytes, const std::function<void(Communicator&)>& run) {
  const auto backend = kernels::make_reference_backend();
  on_rank_threads(size, deadline_s, run, [&](std::unique_ptr<Communicator> host) {
    return parallel::make_staged_communicator(std::move(host), *backend, piece_bytes);
  });
}

unsigned char byte_of(int source, int exchange, size_t i) { return (unsigned char)mix(source * 1000 + exchange, i); }

}  // namespace

TEST_CASE("sizes around the borders of pieces") {
  const size_t bytes = GENERATE(as<size_t>{}, 0, 1, 999, 1000, 1001, 1999, 2000, 2001, 2999, 3000, 3001, 12345);
  CAPTURE(bytes);
  on_staged_ranks(3, kLongS, kPieceBytes, [&](Communicator& comm) {
    std::vector<unsigned char> out(bytes + 1), in(3 * (bytes + 1), 0x5a);
    for (size_t i = 0; i < bytes; i++) out[i] = byte_of(comm.rank(), 0, i);
    std::vector<Transfer> transfers;
    for (int r = 0; r < 3; r++) {
      transfers.push_back({Transfer::send, r, out.data(), bytes, 1});
      transfers.push_back({Transfer::receive, r, in.data() + r * (bytes + 1), bytes, 1});
    }
    comm.exchange_and_wait(transfers, "ragged");
    for (int r = 0; r < 3; r++) {
      for (size_t i = 0; i < bytes; i++)
        require(in[r * (bytes + 1) + i] == byte_of(r, 0, i), "byte {} of rank {}", i, r);
      require(in[r * (bytes + 1) + bytes] == 0x5a, "written past the end of rank {}'s", r);
    }
    require(comm.sent_bytes() == 3 * bytes, "{} bytes sent", comm.sent_bytes());
  });
}

// Gradient buckets: all given before the first is waited for, far more bytes than staging memory (slots of 1 MiB: 64 of them).
TEST_CASE("more in flight than the staging memory holds") {
  constexpr int kExchanges = 60;
  constexpr size_t kBytes = (size_t{2} << 20) + 4321;
  on_staged_ranks(3, kLongS, size_t{1} << 20, [&](Communicator& comm) {
    const int next = (comm.rank() + 1) % 3, before = (comm.rank() + 2) % 3;
    std::vector<std::vector<unsigned char>> out(kExchanges), in(kExchanges);
    std::vector<Ticket> tickets;
    for (int e = 0; e < kExchanges; e++) {
      out[e].resize(kBytes);
      in[e].resize(kBytes);
      for (size_t i = 0; i < kBytes; i += 97) out[e][i] = byte_of(comm.rank(), e, i);
      tickets.push_back(comm.exchange(std::vector<Transfer>{{Transfer::send, next, out[e].data(), kBytes, e % 5},
                                                            {Transfer::receive, before, in[e].data(), kBytes, e % 5}}));
    }
    for (int e = kExchanges - 1; e >= 0; e--) comm.wait(tickets[e], "buckets");
    for (int e = 0; e < kExchanges; e++)
      for (size_t i = 0; i < kBytes; i += 97)
        require(in[e][i] == byte_of(before, e, i), "exchange {}: byte {} of rank {}", e, i, before);
  });
}

/// Reads a byte that another thread may be writing: only to see when it changes, which ThreadSanitizer must not report.
__attribute__((noinline, no_sanitize("thread"))) unsigned char peek(const volatile unsigned char* byte) { return *byte; }

TEST_CASE("exchanges move while nobody waits or polls") {
  on_staged_ranks(2, kLongS, kPieceBytes, [&](Communicator& comm) {
    std::vector<unsigned char> data(100001, comm.rank() == 0 ? 7 : 0);
    Ticket t = comm.exchange(std::vector<Transfer>{
        {comm.rank() == 0 ? Transfer::send : Transfer::receive, 1 - comm.rank(), data.data(), data.size(), 0}});
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(10);
    while (peek(&data.back()) != 7)
      require(std::chrono::steady_clock::now() < limit, "no progress without polling");
    comm.wait(t, "background");
  });
}

TEST_CASE("a peer that does not come to a staged exchange is named with the operation") {
  std::string messages[2];
  on_staged_ranks(3, kLongS, kPieceBytes, [&](Communicator& comm) {
    const auto backend = kernels::make_reference_backend();
    const auto stream = backend->create_stream();
    if (comm.rank() == 2) return;
    std::vector<char> data(5000), received(5000);
    // Rank 1 sends what rank 0 receives; rank 2 does neither.
    std::vector<Transfer> transfers{{comm.rank() == 0 ? Transfer::receive : Transfer::send, 1 - comm.rank(), data.data(), 5000, 0},
                                    {Transfer::receive, 2, received.data(), 5000, 0}};
    DeadlineOfTheAbsent deadline(comm, 0.05, [](int rank) { return rank == 2; });
    const parallel::ObserveWaits observe(deadline);
    try {
      Ticket ticket = comm.rank() == 0 ? comm.exchange(transfers, stream.get()) : comm.exchange(transfers);
      if (comm.rank() == 0)
        comm.wait(ticket, "reduce gradients", *stream);
      else
        comm.wait(ticket, "reduce gradients");
    } catch (const Error& e) {
      require(e.code() == ErrorCode::kPeerLost, "code {}", name_of(e.code()));
      messages[comm.rank()] = e.what();
    }
  });
  CHECK(messages[0] == "world: reduce gradients: rank 2 (world) did not arrive within 0.05 s");
  CHECK(messages[1] == messages[0]);
}

TEST_CASE("staging memory grows while exchanges are new, up to its limit or two of the largest exchange") {
  const auto backend = kernels::make_reference_backend();
  parallel::StagingPool pool(*backend, size_t{1} << 20);
  using Demand = parallel::StagingPool::Demand;
  const auto run = [&](const std::vector<Demand>& in_flight) {
    for (const Demand& d : in_flight) pool.reserve(d);
    for (const Demand& d : in_flight) pool.release(d);
  };
  const std::vector<Demand> step{{2, 6}, {0, 3}, {4, 0}};
  run(step);
  const size_t bytes = pool.bytes();
  CHECK(bytes == 8 * (size_t{64} << 10) + 12 * (size_t{1} << 20));   // two of {4, 6}
  for (int i = 0; i < 3; i++) run(step);
  CHECK(pool.bytes() == bytes);
  run({{0, 6}});   // alone: room for two of them was there
  CHECK(pool.bytes() == bytes);
  run(std::vector<Demand>(100, Demand{0, 6}));
  CHECK(pool.bytes() == 8 * (size_t{64} << 10) + (size_t{64} << 20));
  run({{0, 90}, {0, 90}, {0, 90}});
  CHECK(pool.bytes() == 8 * (size_t{64} << 10) + (size_t{180} << 20));
}

}  // namespace trainctl::test
