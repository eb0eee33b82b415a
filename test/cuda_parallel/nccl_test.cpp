// Goal: over NCCL every byte arrives in the order of the streams, with the bits of the other transports, and whatever fails ends in an
// error that names it, in time: every wait has an end, also that for NCCL's own abort.
// Method: the checks of every transport over emulated NCCL, each rank with an emulated GPU of its own whose streams run as late or as
// oddly as CUDA permits; then one case per way to fail.
#include <catch2/catch.hpp>

#include "kernels/cuda/runtime.h"
#include "parallel/nccl_api.h"
#include "parallel/nccl_link.h"
#include "parallel/wait_observer.h"
#include "test/cuda_parallel/emulated_ranks.h"
#include "test/parallel/lost_ranks.h"

namespace trainctl::test {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

/// Until so many communicators have begun to start; what starts them are threads of their own.
void wait_for_starts(size_t count) {
  for (const auto begin = Clock::now(); emulated_gpu::nccl_communicators_made().size() < count;
       std::this_thread::yield())
    require(seconds_since(begin) < 180, "not every start has begun");
}

/// One message of this rank's memory.
struct Message {
  std::unique_ptr<kernels::Buffer> memory;
  Transfer transfer;
  Message(kernels::Backend& backend, Transfer::Kind kind, int peer, size_t bytes)
      : memory(backend.allocate(bytes)), transfer{kind, peer, memory->data(), bytes, 0} {}
  std::span<const Transfer> span() const { return {&transfer, 1}; }
};

/// Sums for several roots at once, behind an upload and before a download on one stream, which is all that orders them; several such
/// lists under way. A root has the sum of everyone's data in the emulated NCCL's order, the others what they had.
void check_sums(Communicator& comm, kernels::Backend& backend, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto stream = backend.create_stream();
  std::vector<std::unique_ptr<Elements>> data;
  std::vector<std::vector<parallel::Reduction>> lists(3);
  std::vector<Ticket> tickets;
  const uint64_t sent = comm.sent_bytes();
  uint64_t sends = 0;
  for (auto& list : lists) {
    for (int k = 0, parts = 1 + int(random() % 3); k < parts; k++) {
      const int64_t n = 1 + int64_t(random() % 3000);
      const int root = int(random() % uint64_t(comm.size()));
      const DType dtype = random() % 2 ? DType::bf16 : DType::f32;
      Elements& own = *data.emplace_back(std::make_unique<Elements>(backend, dtype, n));
      for (int64_t i = 0; i < n; i++) own.set(i, input_value(comm.rank(), i));
      own.upload(*stream);
      list.push_back({own.data(), n, root, dtype});
      if (root != comm.rank()) sends += uint64_t(n) * size_of(dtype);
    }
    tickets.push_back(comm.reduce(list, stream.get()));
  }
  for (Ticket& t : tickets) comm.wait(t, "reduce gradients", *stream);
  for (auto& own : data) own->download(*stream);
  stream->synchronize();
  comm.check();
  size_t at = 0;
  for (const auto& list : lists)
    for (const parallel::Reduction& r : list) {
      const Elements& own = *data[at++];
      const auto rounded = [&](float x) { return r.dtype == DType::bf16 ? float(bf16(x)) : x; };
      for (int64_t i = 0; i < r.count; i++) {
        float sum = rounded(input_value((r.root + 1) % comm.size(), i));
        for (int k = 2; k <= comm.size(); k++)
          sum = rounded(sum + rounded(input_value((r.root + k) % comm.size(), i)));
        const float expected = r.root == comm.rank() ? sum : rounded(input_value(comm.rank(), i));
        require_same_bits(own.get(i), expected, fmt::format("sum {}", at), i);
      }
    }
  require(comm.sent_bytes() - sent == (comm.size() > 1 ? sends : 0), "{} bytes sent, not {}", comm.sent_bytes() - sent, sends);
}

}  // namespace

TEST_CASE("NCCL: the checks of every transport") {
  const StreamOrder order = GENERATE(from_range(stream_orders()));
  const int size = GENERATE(1, 2, 3, 4);
  CAPTURE(size, int(order.mode), order.seed);
  EmulatedRanks ranks{.size = size, .mode = order.mode, .seed = order.seed};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    for (uint64_t seed = 1; seed <= 3; seed++)
      check_random_messages(comm, backend, 100 * order.seed + seed, 40, Matching::by_exchange);
    check_overlap(comm, backend, 6, 3001);
    check_observed_exchanges(comm, backend);
    comm.check();
  });
}

TEST_CASE("NCCL: sums") {
  const StreamOrder order = GENERATE(from_range(stream_orders()));
  const int size = GENERATE(1, 2, 3, 4);
  CAPTURE(size, int(order.mode), order.seed);
  EmulatedRanks ranks{.size = size, .mode = order.mode, .seed = order.seed};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    require(comm.reduces() && !comm.host().reduces(), "NCCL adds, threads do not");
    for (uint64_t seed = 1; seed <= 3; seed++) {
      check_sums(comm, backend, 100 * order.seed + seed);
      check_random_messages(comm, backend, 100 * order.seed + seed, 5, Matching::by_exchange);
    }
    // An observer sees a sum as what this rank sends to the root, or gets from all others.
    if (comm.size() == 1) return;
    constexpr int64_t kCount = 8;
    const auto stream = backend.create_stream();
    Elements own(backend, DType::f32, kCount);
    own.upload(*stream);
    SeenExchanges seen;
    const parallel::ObserveWaits observe(seen);
    const parallel::Reduction sum{static_cast<float*>(own.data()), kCount, 0};
    Ticket ticket = comm.reduce({&sum, 1}, stream.get());
    comm.wait(ticket, "sum", *stream);
    stream->synchronize();
    require(seen.began.size() == 1 && seen.ended.size() == 1, "{} began, {} ended", seen.began.size(),
            seen.ended.size());
    const uint64_t bytes = kCount * sizeof(float), others = uint64_t(comm.size() - 1);
    const parallel::ExchangeNote& note = seen.ended[0];
    require(note.sent == (comm.rank() == 0 ? 0 : bytes), "{} bytes sent", note.sent);
    require(note.received == (comm.rank() == 0 ? others * bytes : 0), "{} bytes received", note.received);
  });
}

TEST_CASE("NCCL: a peer that does not come to a sum, at the first and at a later one") {
  const bool first = GENERATE(true, false);
  std::string messages[3];
  EmulatedRanks ranks{.size = 3};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    if (!first) check_sums(comm, backend, 1);
    parallel::barrier(comm.host());
    if (comm.rank() == 1) return parallel::barrier(comm.host());
    if (first) set_nccl_deadline(comm, 0.3);  // the first sum waits for its peers as it begins
    const auto stream = backend.create_stream();
    const auto memory = backend.allocate(400);
    const parallel::Reduction sum{static_cast<float*>(memory->data()), 100, 0};
    messages[comm.rank()] = error_of(ErrorCode::kPeerLost, [&] {
      Ticket t = comm.reduce({&sum, 1}, stream.get());
      set_nccl_deadline(comm, 0.3);
      comm.wait(t, "reduce gradients", *stream);
      stream->synchronize();
      comm.check();
    });
    parallel::barrier(comm.host());
  });
  const std::string what = first ? "begin an exchange" : "reduce gradients";
  CHECK(messages[0] == "world: " + what + ": ranks 1, 2 (world) did not arrive within 0.3 s");
  // NCCL may be through with a part of one who only gives.
  if (first || !messages[2].empty()) CHECK(messages[2] == "world: " + what + ": ranks 0, 1 (world) did not arrive within 0.3 s");
}

TEST_CASE("NCCL: collectives and splits") {
  const StreamOrder order = GENERATE(StreamOrder{}, StreamOrder{emulated_gpu::StreamMode::random, 7});
  CAPTURE(int(order.mode), order.seed);
  EmulatedRanks ranks{.size = 3, .mode = order.mode, .seed = order.seed};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    check_collectives(comm, backend);
    check_subgroups(comm, backend, Matching::by_exchange);
  });
}

// Every rank begins with a send to its neighbour, on a communicator of the two: nobody may stay in it until the neighbour comes.
TEST_CASE("NCCL: a ring in which every rank sends first") {
  EmulatedRanks ranks{.size = 3};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    std::unique_ptr<Communicator> edges[3];   // edge e joins ranks e and (e + 1) % 3
    for (int e = 0; e < 3; e++) 
      edges[e] = group_by(
          comm, 1 + e, "edge", [e](int r) { return r == (e + 2) % 3 ? -1 : 0; }, [e](int r) { return (r - e + 3) % 3; });
    const auto stream = backend.create_stream();
    Message out(backend, Transfer::send, 1, 1000), in(backend, Transfer::receive, 0, 1000);
    Communicator &next = *edges[comm.rank()], &before = *edges[(comm.rank() + 2) % 3];
    Ticket sent = next.exchange(out.span(), stream.get());
    Ticket received = before.exchange(in.span(), stream.get());
    before.wait(received, "receive", *stream);
    next.wait(sent, "send", *stream);
    stream->synchronize();
    parallel::barrier(comm);
  });
}

TEST_CASE("NCCL: a peer that does not come, waited for on the host") {
  std::string messages[3], later;
  EmulatedRanks ranks{.size = 3};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    const auto group = group_by(comm, 1, "dp group of stage 1", [](int r) { return r == 1 ? -1 : 0; }, [](int r) { return -r; });   // world ranks 2, 0
    if (comm.rank() != 0) return parallel::barrier(comm);
    Message m(backend, Transfer::receive, 0, 1000);
    Ticket ticket = group->exchange(m.span());
    set_nccl_deadline(*group, 0.3);
    messages[0] = error_of(ErrorCode::kPeerLost, [&] { group->wait(ticket, "reduce gradients"); });
    later = error_of(ErrorCode::kPeerLost, [&] { group->exchange(m.span()); });
    messages[1] = error_of(ErrorCode::kPeerLost, [&] { group->check(); });
    messages[2] = error_of(ErrorCode::kPeerLost, [&] { same_again(*group, 2, "part"); });
    parallel::barrier(comm);
  });
  for (const std::string& m : messages)
    CHECK(m == "dp group of stage 1: reduce gradients: rank 2 (world) did not arrive within 0.3 s");
  CHECK(later == messages[0]);
}

TEST_CASE("NCCL: a peer that does not come, waited for by a stream") {
  std::string checked, later;
  EmulatedRanks ranks{.size = 2};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    if (comm.rank() == 1) return;
    const auto stream = backend.create_stream();
    Message m(backend, Transfer::receive, 1, 1000);
    const auto begin = Clock::now();
    comm.exchange_and_wait(m.span(), "receive an activation", *stream);
    comm.check();   // the host has not waited: the message has not come, and its time is not over
    set_nccl_deadline(comm, 0.3);
    stream->synchronize();   // ends, because the watch aborts NCCL
    require(seconds_since(begin) >= 0.3, "given up after {} s", seconds_since(begin));
    checked = error_of(ErrorCode::kPeerLost, [&] { comm.check(); });
    later = error_of(ErrorCode::kPeerLost, [&] { comm.exchange_and_wait(m.span(), "another", *stream); });
  });
  CHECK(checked == "world: receive an activation: rank 1 (world) did not arrive within 0.3 s");
  CHECK(later == checked);
}

// The exchange that hangs is named, also when somebody waits only for a later one.
TEST_CASE("NCCL: a later exchange is waited for behind one that hangs") {
  std::string checked;
  std::atomic<bool> is_checked = false;
  EmulatedRanks ranks{.size = 3};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    if (comm.rank() == 2) return;
    const auto stream = backend.create_stream();
    Message lost(backend, Transfer::receive, 2, 1000), fine(backend, comm.rank() == 0 ? Transfer::send : Transfer::receive,
                                                            1 - comm.rank(), 1000);
    if (comm.rank() == 1) {
      Ticket never = comm.exchange(fine.span());
      wait_until(is_checked);
      set_nccl_deadline(comm, 0.3);
      error_of(ErrorCode::kPeerLost, [&] { comm.wait(never, "receive"); });
      return;
    }
    Ticket first = comm.exchange(lost.span(), stream.get());
    Ticket second = comm.exchange(fine.span(), stream.get());
    comm.wait(second, "send", *stream);
    set_nccl_deadline(comm, 0.3);
    stream->synchronize();
    checked = error_of(ErrorCode::kPeerLost, [&] { comm.check(); });
    is_checked = true;
  });
  CHECK(checked == "world: send: rank 2 (world) did not arrive within 0.3 s");
}

// A long computation before an exchange is no missing peer: the clock begins when the stream has come to it. Rank 1 comes when the
// device waits for it, long after the deadline of a clock that had begun with the wait of the stream.
TEST_CASE("NCCL: the deadline does not count the work before") {
  std::vector<DeviceWait> waits(2);
  EmulatedRanks ranks{.size = 2};
  ranks.run_observed(waits, [&](Communicator& comm, kernels::Backend& backend) {
    const auto stream = backend.create_stream();
    Message m(backend, comm.rank() == 0 ? Transfer::receive : Transfer::send, 1 - comm.rank(), 1000);
    if (comm.rank() == 0) {
      emulated_gpu::hang_stream(static_cast<kernels::cuda::CudaStream&>(*stream).handle());
      backend.run(*stream, kernels::FillZero{.data = m.memory->data(), .size = 1000});
      comm.exchange_and_wait(m.span(), "exchange behind a long computation", *stream);
      emulated_gpu::pass_nccl_time(2 * kLongS);
      comm.check();
      emulated_gpu::release_hung();
    }
    parallel::barrier(comm);
    if (comm.rank() == 1) {
      wait_until(waits[0].is_blocked);
      comm.exchange_and_wait(m.span(), "send", *stream);
    }
    stream->synchronize();
    comm.check();
    parallel::barrier(comm);
  });
}

// A message may be under way for as long as nobody waits for it: the clock of a wait begins with the wait, as over MPI.
TEST_CASE("NCCL: the deadline does not count what nobody waits for") {
  std::vector<DeviceWait> waits(2);
  EmulatedRanks ranks{.size = 2};
  ranks.run_observed(waits, [&](Communicator& comm, kernels::Backend& backend) {
    const auto stream = backend.create_stream();
    Message m(backend, comm.rank() == 0 ? Transfer::receive : Transfer::send, 1 - comm.rank(), 1000);
    Ticket t;
    if (comm.rank() == 0) {
      t = comm.exchange(m.span(), stream.get());
      for (int look = 0; look < 1000; ++look) comm.check();   // its device has come to it
      emulated_gpu::pass_nccl_time(2 * kLongS);
      comm.check();
    }
    parallel::barrier(comm);
    if (comm.rank() == 1) {
      wait_until(waits[0].is_blocked);
      t = comm.exchange(m.span(), stream.get());
    }
    comm.wait(t, "late", *stream);
    stream->synchronize();
    comm.check();
    parallel::barrier(comm);
  });
}

TEST_CASE("NCCL: a long wait of the device is reported, and its end") {
  std::vector<DeviceWait> seen(2);
  EmulatedRanks ranks{.size = 2};
  ranks.run_observed(seen, [&](Communicator& comm, kernels::Backend& backend) {
    const auto stream = backend.create_stream();
    Message m(backend, comm.rank() == 0 ? Transfer::receive : Transfer::send, 1 - comm.rank(), 1000);
    if (comm.rank() == 1) wait_until(seen[0].is_blocked);
    comm.exchange_and_wait(m.span(), "receive an activation", *stream);
    stream->synchronize();
    if (comm.rank() == 0) wait_until(seen[0].is_over);
    parallel::barrier(comm);
  });
  CHECK(seen[0].what == "world: receive an activation");
  CHECK(seen[0].missing_peers == std::vector{1});
  CHECK(seen[0].is_over);
}

// A caller that sees the failure may give the memory back at once: the device no longer works on it.
TEST_CASE("NCCL: a wait on the host throws after the abort") {
  std::vector<DeviceWait> waits(2);
  EmulatedRanks ranks{.size = 2, .nccl = {.abort_takes_ms = 200}};
  ranks.run_observed(waits, [&](Communicator& comm, kernels::Backend& backend) {
    if (comm.rank() == 1) {
      wait_until(waits[0].is_blocked);
      emulated_gpu::pass_nccl_time(2 * kLongS);
    } else {
      Message m(backend, Transfer::receive, 1, 1000);
      const std::string message =
          error_of(ErrorCode::kPeerLost, [&] { comm.exchange_and_wait(m.span(), "receive"); });
      require(!message.empty() && emulated_gpu::living_nccl_communicators() == 1, "'{}', {} alive", message,
              emulated_gpu::living_nccl_communicators());
    }
    parallel::barrier(comm);
  });
}

// Two groups miss the same rank, and a stream waits for both. The second one's own deadline is longer than
// the test may take.
TEST_CASE("NCCL: one lost peer ends all groups of a rank at the first deadline") {
  std::string first, second, other;
  EmulatedRanks ranks{.size = 3};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    const auto a = same_again(comm, 1, "a"), b = same_again(comm, 2, "b");
    parallel::barrier(comm);
    if (comm.rank() == 0) {
      set_nccl_deadline(*b, 3600);
      const auto stream = backend.create_stream();
      Message lost(backend, Transfer::receive, 2, 1000), behind(backend, Transfer::receive, 2, 1000);
      a->exchange_and_wait(lost.span(), "receive", *stream);
      b->exchange_and_wait(behind.span(), "receive later", *stream);
      set_nccl_deadline(*a, 0.3);
      stream->synchronize();
      first = error_of(ErrorCode::kPeerLost, [&] { a->check(); });
      second = error_of(ErrorCode::kPeerLost, [&] { b->check(); });
    }
    parallel::barrier(comm);
    if (comm.rank() == 1) other = error_of(ErrorCode::kPeerLost, [&] { a->check(), b->check(); });
    parallel::barrier(comm);
  });
  CHECK(first == "a: receive: rank 2 (world) did not arrive within 0.3 s");
  CHECK(second == first);
  CHECK(other == "");  // another rank of this process has no failure of its own
}

TEST_CASE("NCCL: a look goes over each exchange once, however many are pending") {
  for (const bool moves : {false, true})
    for (const uint64_t exchanges : {400, 4000}) {
      CAPTURE(moves, exchanges);
      emulated_gpu::reset({});
      const auto backend = kernels::make_cuda_backend({});
      const auto own = backend->create_stream(), then = backend->create_stream();
      parallel::NcclLink link(nullptr, *backend, "dp group", kLongS);
      if (!moves) emulated_gpu::hang_stream(static_cast<kernels::cuda::CudaStream&>(*own).handle());
      std::vector<std::shared_ptr<parallel::NcclPending>> all;
      for (uint64_t i = 0; i < exchanges; ++i) {
        all.push_back(link.make_pending({1}));
        own->record(*all.back()->started);
        own->record(*all.back()->done);
        link.add(all.back());
        link.check();
        link.set_waited(all.back(), "exchange", *then);
        then->wait(*all.back()->done);
        link.release(*all.back());
      }
      if (!moves) CHECK(link.entries_seen() <= exchanges);
      emulated_gpu::release_hung();
      then->synchronize();
      link.check();
      CHECK(link.entries_seen() <= 3 * exchanges);
      CHECK(link.entries_seen() >= exchanges);
      link.shut_down();
    }
}

TEST_CASE("NCCL: an error that NCCL reports") {
  std::string waited, checked;
  EmulatedRanks ranks{.size = 2};  // an error does not wait for the deadline
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    parallel::barrier(comm);
    if (comm.rank() == 1) return;
    Message m(backend, Transfer::receive, 1, 1000);
    Ticket t = comm.exchange(m.span());
    emulated_gpu::fail_nccl(0, ncclRemoteError, "connection closed by remote peer\n");
    waited = error_of(ErrorCode::kPeerLost, [&] { comm.wait(t, "reduce gradients"); });
    checked = error_of(ErrorCode::kPeerLost, [&] { comm.check(); });
  });
  CHECK(waited == "world: reduce gradients: NCCL reports ncclRemoteError with rank 1 (world): remote process exited or there was a "
                  "network error (connection closed by remote peer)");
  CHECK(checked == waited);
}

TEST_CASE("NCCL: a rank that does not come to the start is named") {
  std::string messages[3];
  RanksThatCome others(2);
  EmulatedRanks ranks{.size = 3, .host_deadline_s = 0.3};
  const auto make = [&](std::unique_ptr<Communicator> host,
                        kernels::Backend& backend) -> std::unique_ptr<Communicator> {
    const int rank = host->rank();
    if (rank == 2) return host;
    try {
      return parallel::make_nccl_communicator(others.end_of(std::move(host)), backend, kLongS);
    } catch (const Error& e) {
      messages[rank] = e.what();
      throw;
    }
  };
  CHECK_THROWS_AS(ranks.run(make, [](Communicator&, kernels::Backend&) {}), Error);
  CHECK(messages[0] == "world: start NCCL: rank 2 (world) did not arrive within 0.3 s");
}

TEST_CASE("NCCL: a start that never ends") {
  EmulatedRanks ranks{.size = 3, .deadline_s = 0.3, .nccl = {.init_hangs = true}};
  std::string messages[3];
  const auto make = [&](std::unique_ptr<Communicator> host, kernels::Backend& backend) -> std::unique_ptr<Communicator> {
    const int rank = host->rank();
    messages[rank] = error_of(ErrorCode::kPeerLost, [&] { parallel::make_nccl_communicator(std::move(host), backend, 0.3); });
    return nullptr;
  };
  // The ranks end without a communicator.
  CHECK_NOTHROW(ranks.run([&](auto host, auto& backend) {
    auto spare = host->subgroup({.members = {host->rank()}, .number = 1, .name = "alone"});
    make(std::move(host), backend);
    return spare;
  }, [](Communicator&, kernels::Backend&) {}));
  CHECK(messages[0] == "world: start NCCL: ranks 1, 2 (world) did not arrive within 0.3 s");
  CHECK(messages[2] == "world: start NCCL: ranks 0, 1 (world) did not arrive within 0.3 s");
  wait_for_starts(3);
  emulated_gpu::release_starts();
  wait_for_aborts();  // what comes late is aborted
}

TEST_CASE("NCCL: an abort that hangs does not hang the rank") {
  std::string message;
  std::unique_ptr<Message> kept;  // the device still holds it: giving it back would wait for NCCL
  EmulatedRanks ranks{.size = 2, .nccl = {.abort_hangs = true}, .may_leave_things = true};
  ranks.run([](auto host,
               auto& backend) { return parallel::make_nccl_communicator(std::move(host), backend, kLongS); },
            [&](Communicator& comm, kernels::Backend& backend) {
              const auto part = same_again(comm, 1, "part");
              // Also the limit of the waits for aborts, at the end.
              const auto set_deadlines = [&] {
                for (Communicator* c : {&comm, part.get()}) set_nccl_deadline(*c, 0.3);
              };
              if (comm.rank() == 1) return parallel::barrier(comm), set_deadlines();
              kept = std::make_unique<Message>(backend, Transfer::receive, 1, 1000);
              Ticket ticket = part->exchange(kept->span());
              set_deadlines();
              message = error_of(ErrorCode::kPeerLost, [&] { part->wait(ticket, "receive"); });
              parallel::barrier(comm);
            });
  CHECK(message == "part: receive: rank 1 (world) did not arrive within 0.3 s");
  CHECK(emulated_gpu::living_nccl_communicators() > 0);
  emulated_gpu::release_aborts();
  wait_for_aborts();
  kept.reset();
  CHECK(emulated_gpu::leaks() == "");
}

TEST_CASE("NCCL: an abandoned exchange ends the communicator, so that its memory can be given back") {
  std::string message;
  EmulatedRanks ranks{.size = 2};
  ranks.run_nccl([&](Communicator& comm, kernels::Backend& backend) {
    if (comm.rank() == 1) return;
    Message m(backend, Transfer::receive, 1, 1000);
    { Ticket gone = comm.exchange(m.span()); }
    message = error_of(ErrorCode::kPeerLost, [&] { comm.check(); });
  });
  CHECK(message == "world: an exchange was given up before it was done");
}

}  // namespace trainctl::test
