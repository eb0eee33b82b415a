// What must hold over every transport of the reports to an observer: as transport_checks.h.
#pragma once
#include <vector>

#include "parallel/wait_observer.h"
#include "test/parallel/mpi/transport_checks.h"

namespace trainctl::test {

/// Keeps what a thread's transports report of exchanges.
struct SeenExchanges final : parallel::WaitObserver {
  bool is_on = true;
  std::vector<std::string> began;  ///< names of communicators
  std::vector<parallel::ExchangeNote> ended;
  void blocked(const std::string&, const char*) noexcept override {}
  void begin_missing() noexcept override {}
  void missing(int) noexcept override {}
  void end_missing() noexcept override {}
  void resumed() noexcept override {}
  bool observes_exchanges() const noexcept override { return is_on; }
  parallel::ExchangeNote exchange_began(const Communicator& comm,
                                        std::span<const Transfer> transfers) noexcept override {
    began.push_back(comm.name());
    parallel::ExchangeNote note{.begin_ns = int64_t(began.size())};
    for (const Transfer& t : transfers) (t.kind == Transfer::send ? note.sent : note.received) += t.bytes;
    return note;
  }
  void exchange_ended(const parallel::ExchangeNote& note) noexcept override { ended.push_back(note); }
};

/// Every exchange is reported once, with its transfers, from its start until it was waited for, by the first
/// name that it got; none is while the observer does not ask.
inline void check_observed_exchanges(Communicator& comm, kernels::Backend& backend) {
  constexpr size_t kBytes = 70000;  // several pieces of a staged transport
  const int n = comm.size(), next = (comm.rank() + 1) % n, before = (comm.rank() + n - 1) % n;
  if (n == 1) return;
  const auto stream = backend.create_stream();
  const auto out = backend.allocate(kBytes), in = backend.allocate(kBytes);
  const std::vector<Transfer> ring = {{Transfer::send, next, out->data(), kBytes, 3},
                                      {Transfer::receive, before, in->data(), kBytes, 3}};
  SeenExchanges seen;
  const parallel::ObserveWaits observe(seen);
  const auto is_named = [&](const char* name) {
    require(seen.ended.size() == seen.began.size(), "{} of {} ended", seen.ended.size(), seen.began.size());
    const parallel::ExchangeNote& note = seen.ended.back();
    require(note.begin_ns == int64_t(seen.began.size()), "the note of exchange {}", note.begin_ns);
    require(note.sent == kBytes && note.received == kBytes, "{} and {} bytes", note.sent, note.received);
    require(seen.began.back() == comm.name(), "{} instead of {}", seen.began.back(), comm.name());
    const std::string found = note.operation ? note.operation : "";
    require(found == name, "named \"{}\" instead of \"{}\"", found, name);
  };
  Ticket waited = comm.exchange(ring, stream.get());
  require(seen.began.size() == 1 && seen.ended.empty(), "{} began", seen.began.size());
  comm.wait(waited, "wait for the ring", *stream);
  is_named("wait for the ring");
  comm.exchange_and_wait(ring, "at once", *stream);
  is_named("at once");
  Ticket named = comm.exchange(ring, stream.get());
  named.name("mine");
  comm.wait(named, "other", *stream);
  is_named("mine");
  Ticket polled = comm.exchange(ring, stream.get());
  while (!comm.test(polled)) std::this_thread::yield();
  is_named("");
  require(seen.began.size() == 4, "{} exchanges were reported", seen.began.size());
  seen.is_on = false;
  Ticket unseen = comm.exchange(ring, stream.get());
  seen.is_on = true;  // it was not reported when it began
  comm.wait(unseen, "unseen", *stream);
  require(seen.began.size() == 4 && seen.ended.size() == 4, "{} ended", seen.ended.size());
  stream->synchronize();
  parallel::barrier(comm.host());  // before memory is freed that a peer reads
}

}  // namespace trainctl::test
