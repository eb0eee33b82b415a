// Who is to learn that a rank blocks for its peers: the transports report each wait that really blocks, and say who is missing.
//
// An observer belongs to one thread, as a rank's communicators do; transports find it there, so it need not be handed to every
// communicator that is made by a split. Nothing is allocated or formatted on the way.
#pragma once
#include <exception>
#include <span>
#include <string>

namespace trainctl::parallel {

class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  /// A wait of this thread blocks from now on. Both texts live until resumed().
  virtual void blocked(const std::string& communicator, const char* operation) noexcept = 0;
  /// The peers that are still missing (world ranks), one call each between two of these; called again when some have come.
  virtual void begin_missing() noexcept = 0;
  virtual void missing(int world_rank) noexcept = 0;
  virtual void end_missing() noexcept = 0;
  /// The wait is over. Not called when it ended by an exception: what was waited for then stays on record.
  virtual void resumed() noexcept = 0;

  /// From any thread: work of this rank on its device has waited for these peers (world ranks) for a while. Repeated as long as it does.
  virtual void device_blocked(const std::string& communicator, const std::string& operation, std::span<const int> peers) noexcept {
    (void)communicator, (void)operation, (void)peers;
  }
  virtual void device_resumed() noexcept {}
};

/// Of this thread; null if there is none.
inline thread_local WaitObserver* t_wait_observer = nullptr;

/// Connects an observer to this thread for as long as it lives; then the one before is back.
class ObserveWaits {
 public:
  explicit ObserveWaits(WaitObserver& observer) : before_(t_wait_observer) { t_wait_observer = &observer; }
  ~ObserveWaits() { t_wait_observer = before_; }
  ObserveWaits(const ObserveWaits&) = delete;
  ObserveWaits& operator=(const ObserveWaits&) = delete;

 private:
  WaitObserver* before_;
};

/// One wait that blocks; a transport makes it once it has found that it must wait.
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

  /// `unfinished` is what remains of the exchange; if it has changed, each(report) calls report(world_rank) for each missing peer.
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
