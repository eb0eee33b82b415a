// Device transfers by way of pinned host memory, over any transport of host memory.
//
// A transfer is cut into pieces. A piece to be sent is copied to the host once the exchange is ready (its `after` event is reached)
// and sent as soon as it is there, while the next ones are copied. A piece to be received is asked for at once, and copied to the
// device when it has come and the exchange is ready. A thread that waits or polls moves everything; while there is none, a thread of
// the communicator does it at long intervals.
//  - The host decides when an exchange is ready and only then gives its copies to the copy streams, so that an exchange whose turn
//    comes late does not stand before the copies of an earlier one. Only a caller that waits for an exchange lets the copy stream
//    wait for `after`: then the copies, and what follows on the caller's stream, need no host between them and the work before.
//  - Pieces with one peer and one tag travel in the order of their transfers: the k-th piece sent is the k-th received.
//  - Slots of pinned memory are granted to exchanges in their order, each exchange all or none: the oldest one always moves, and all
//    its transfers move together, so a full pool delays but never deadlocks.
#include <algorithm>
#include <optional>
#include <utility>

#include "parallel/back_off.h"
#include "parallel/communicator.h"
#include "parallel/staged_engine.h"
#include "parallel/transfer_rules.h"
#include "parallel/wait_observer.h"

namespace trainctl::parallel {
namespace {

using staging::Clock;
using staging::Engine;
using staging::StagedExchange;

struct StagedTicket : Ticket::State {
  std::shared_ptr<Engine> engine;
  StagedExchange exchange;
  bool was_waited_for = false;

  ~StagedTicket() override {
    if (!engine) return;  // it never began
    std::lock_guard lock(engine->mutex);
    engine->end(exchange, was_waited_for);
  }
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, kernels::Backend& backend, size_t piece_bytes)
      : host_(std::move(host)),
        backend_(backend),
        piece_bytes_(piece_bytes),
        engine_(std::make_shared<Engine>(host_->twin(), backend, piece_bytes)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  int world_rank(int r) const override { return host_->world_rank(r); }
  double deadline_s() const override { return host_->deadline_s(); }
  void set_deadline(double seconds) override { host_->set_deadline(seconds); }
  double waited_s() const override { return waited_s_; }
  uint64_t sent_bytes() const override { return sent_bytes_; }
  Communicator& host() override { return *host_; }

  Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after) override {
    check_transfers(*this, transfers);
    if (transfers.empty()) return Ticket();
    auto pairs = match_own(*this, transfers);
    for (const Transfer& t : transfers)
      if (t.kind == Transfer::send) sent_bytes_ += t.bytes;
    auto ticket = std::make_unique<StagedTicket>();
    ticket->observed.begin(*this, transfers);
    std::unique_lock lock(engine_->mutex);
    ticket->exchange.to_self = std::move(pairs);
    engine_->start(ticket->exchange, transfers, after);
    ticket->engine = engine_;
    engine_->progress();
    lock.unlock();
    engine_->wake_background();
    return Ticket(std::move(ticket));
  }

  bool test(Ticket& ticket) override {
    if (!ticket) return true;
    StagedTicket& pending = own(ticket);
    {
      std::lock_guard lock(engine_->mutex);
      engine_->progress();
      const StagedExchange& e = pending.exchange;
      if (e.error) std::rethrow_exception(e.error);
      if (!e.copies_given || !e.done->reached()) return false;
      pending.was_waited_for = true;
    }
    ticket.reset();
    return true;
  }

  void wait(Ticket& ticket, const char* what) override { wait_for(ticket, what, nullptr); }
  void wait(Ticket& ticket, const char* what, kernels::Stream& then) override { wait_for(ticket, what, &then); }

  std::unique_ptr<Communicator> subgroup(const Subgroup& group) override {
    return std::make_unique<StagedCommunicator>(host_->subgroup(group), backend_, piece_bytes_);
  }
  std::unique_ptr<Communicator> twin() override { ENSURE(false, "{}: its pieces travel over the twin of its host", name()); }

 private:
  void wait_for(Ticket& ticket, const char* what, kernels::Stream* then) {
    if (!ticket) return;
    Ticket taken = std::move(ticket);   // emptied on every way out
    StagedTicket& pending = own(taken);
    pending.observed.name(what);
    StagedExchange& e = pending.exchange;
    const auto start = Clock::now();
    BackOff back_off;
    std::optional<BlockedWait> blocked;   // once the work before it is done: until then this rank computes
    std::unique_lock lock(engine_->mutex);
    engine_->waiting++;
    e.stream_waits = then != nullptr;
    try {
      while (!poll(e, what, then, start)) {
        if (e.ready && !blocked) blocked.emplace(name(), what);
        if (blocked) blocked->update(e.unfinished, [&](auto report) { each_missing(e, report); });
        lock.unlock();
        back_off.pause();
        lock.lock();
      }
    } catch (...) {
      engine_->waiting--;
      throw;
    }
    engine_->waiting--;
    pending.was_waited_for = true;
    waited_s_ += std::chrono::duration<double>(Clock::now() - start).count();
  }

  /// True when the wait is over. The clock of the deadline begins when the exchange could begin. What ends the
  /// wait is a look behind it with nothing new: this process itself may have been stopped while peers came.
  bool poll(StagedExchange& e, const char* what, kernels::Stream* then, Clock::time_point start) {
    const bool is_late = e.ready && seconds_since(std::max(start, e.ready_at)) > deadline_s();
    engine_->progress();
    if (e.error) throw_as(e.error, what);
    if (e.copies_given) {
      if (!then) return e.done->reached();
      then->wait(*e.done);
      return true;
    }
    const bool has_moved = std::exchange(e.moves_seen, e.moves) != e.moves;
    if (is_late && !has_moved) {
      const std::vector<int> missing = missing_ranks(e);
      if (!missing.empty()) throw deadline_error(*this, what, missing, deadline_s());
    }
    return false;
  }

  static double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

  std::vector<int> missing_ranks(const StagedExchange& e) const {
    std::vector<int> ranks;
    each_missing(e, [&](int rank) { ranks.push_back(rank); });
    return ranks;
  }

  template <typename Report>
  void each_missing(const StagedExchange& e, Report report) const {
    for (const staging::Op& op : e.ops)
      if (op.finished < op.pieces) report(world_rank(op.transfer.peer));
  }

  /// The host transport found the error while polling; the caller waits for `what`.
  [[noreturn]] void throw_as(const std::exception_ptr& error, const char* what) const {
    try {
      std::rethrow_exception(error);
    } catch (const ExchangeError& e) {
      throw ExchangeError(e.code(), name(), what, e.reason());
    }
  }

  StagedTicket& own(Ticket& ticket) const {
    auto* pending = dynamic_cast<StagedTicket*>(ticket.state());
    ENSURE(pending != nullptr && pending->engine == engine_, "{}: a ticket of another communicator", name());
    return *pending;
  }

  std::unique_ptr<Communicator> host_;
  kernels::Backend& backend_;
  size_t piece_bytes_;
  std::shared_ptr<Engine> engine_;
  double waited_s_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, kernels::Backend& backend,
                                                       size_t piece_bytes) {
  ENSURE(piece_bytes > 0, "{}: pieces of 0 bytes", host->name());
  return std::make_unique<StagedCommunicator>(std::move(host), backend, piece_bytes);
}

}  // namespace trainctl::parallel
