// WaitObserver: the interface through which transports report each wait that blocks, and the missing peers;
// and, to an observer that asks for them, the exchanges.
//
// An observer belongs to one thread, like a rank's communicators. Transports find it in a thread-local
// variable, so a subgroup need not pass it on. Reports do not allocate or format.
#pragma once
#include <cstdint>
#include <exception>
#include <span>
#include <string>

namespace trainctl::parallel {

class Communicator;
struct Transfer;

/// What an observer keeps of an exchange until it ends.
struct ExchangeNote {
  int64_t begin_ns = 0;
  uint64_t peers = 0, sent = 0, received = 0;   ///< as in Span (runtime/spans/span.h)
  uint16_t group = 0;
  int16_t tag = 0;
  const char* operation = nullptr;   ///< its purpose, or the name of the wait for it; null: not known
};

class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  /// A wait of this thread begins to block. Both texts are valid until resumed().
  virtual void blocked(const std::string& communicator, const char* operation) noexcept = 0;
  /// Reports the missing peers: begin_missing, one missing() for each (world rank), end_missing. Repeated
  /// when some have arrived.
  virtual void begin_missing() noexcept = 0;
  virtual void missing(int world_rank) noexcept = 0;
  virtual void end_missing() noexcept = 0;
  /// The wait is over. Not called if the wait ended by an exception, so that the record keeps the wait.
  virtual void resumed() noexcept = 0;

  /// Work of this rank on its device has waited for these peers (world ranks) for some time. Repeated while
  /// it waits. Any thread.
  virtual void device_blocked(const std::string& communicator, const std::string& operation, std::span<const int> peers) noexcept {
    (void)communicator, (void)operation, (void)peers;
  }
  virtual void device_resumed() noexcept {}

  /// Whether exchanges are to be reported. Transports ask at the beginning of each.
  virtual bool observes_exchanges() const noexcept { return false; }
  /// This thread begins an exchange; its ticket keeps the note.
  virtual ExchangeNote exchange_began(const Communicator& communicator,
                                      std::span<const Transfer> transfers) noexcept {
    (void)communicator, (void)transfers;
    return {};
  }
  /// The exchange was waited for, or given up.
  virtual void exchange_ended(const ExchangeNote& note) noexcept { (void)note; }
};

/// The observer of this thread; null if there is none.
inline thread_local WaitObserver* t_wait_observer = nullptr;

/// Makes `observer` the observer of this thread while this object lives. The destructor restores the previous
/// one.
class ObserveWaits {
 public:
  explicit ObserveWaits(WaitObserver& observer) : before_(t_wait_observer) { t_wait_observer = &observer; }
  ~ObserveWaits() { t_wait_observer = before_; }
  ObserveWaits(const ObserveWaits&) = delete;
  ObserveWaits& operator=(const ObserveWaits&) = delete;

 private:
  WaitObserver* before_;
};

/// One exchange for the observer of its thread, from begin() until this object ends. Tickets hold one.
class ObservedExchange {
 public:
  ObservedExchange() = default;
  ~ObservedExchange() {
    if (is_observed_ && t_wait_observer) t_wait_observer->exchange_ended(note_);
  }
  ObservedExchange(const ObservedExchange&) = delete;
  ObservedExchange& operator=(const ObservedExchange&) = delete;

  /// Whether begin() would report an exchange.
  static bool is_wanted() { return t_wait_observer && t_wait_observer->observes_exchanges(); }
  void begin(const Communicator& communicator, std::span<const Transfer> transfers) {
    if (!is_wanted()) return;
    note_ = t_wait_observer->exchange_began(communicator, transfers);
    is_observed_ = true;
  }
  /// The first name counts. `operation` is a literal.
  void name(const char* operation) {
    if (!note_.operation) note_.operation = operation;
  }

 private:
  ExchangeNote note_;
  bool is_observed_ = false;
};

/// One wait that blocks. A transport makes this object when it has found that it must wait.
class BlockedWait {
 public:
  BlockedWait(const std::string& communicator, const char* operation)
      : observer_(t_wait_observer), exceptions_(std::uncaught_exceptions()) {
    if (observer_) observer_->blocked(communicator, operation);
  }
  ~BlockedWait() {
    if (observer_ && std::uncaught_exceptions() == exceptions_) observer_->resumed();
  }
  BlockedWait(const BlockedWait&) = delete;
  BlockedWait& operator=(const BlockedWait&) = delete;

  /// Reports the missing peers if `unfinished` (the number of unfinished parts of the exchange) has changed.
  /// each(report) must call report(world_rank) for each missing peer.
  template <typename Each>
  void update(size_t unfinished, Each each) {
    if (!observer_ || unfinished == unfinished_) return;
    unfinished_ = unfinished;
    observer_->begin_missing();
    each([this](int world_rank) { observer_->missing(world_rank); });
    observer_->end_missing();
  }

 private:
  WaitObserver* const observer_;
  const int exceptions_;
  size_t unfinished_ = ~size_t{0};
};

}  // namespace trainctl::parallel
