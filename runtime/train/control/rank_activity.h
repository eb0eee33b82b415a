// RankActivity keeps this rank's current activity for heartbeats, the supervisor and the crash record, and
// records what it was as spans while the run is traced.
//
// The trainer sets the phase; the transports report the peers for which it blocks, and the exchanges
// (parallel/wait_observer.h). One thread, which also makes and destroys it; device_* may be called from any
// thread. Every change goes to `control` at once, without allocation, formatting or system call.
#pragma once
#include <mutex>

#include "parallel/communicator.h"
#include "parallel/wait_observer.h"
#include "runtime/base/activity.h"
#include "runtime/spans/recorder.h"
#include "runtime/train/control/control.h"

namespace trainctl {

class RankActivity final : public parallel::WaitObserver {
 public:
  /// Reports the activity and the waits of this thread to `control` while this object lives. `spans`: what it
  /// records in while a trace is on; null: nothing.
  RankActivity(Control& control, RunPhase phase, SpanRecorder* spans = nullptr)
      : control_(control), spans_(spans), observe_(*this) {
    enter(phase);
  }

  void enter(RunPhase phase, int64_t step = -1, std::string_view detail = {}) { set({.phase = phase, .step = step, .detail = detail}); }
  /// Enters a phase of a step, which is recorded as a span until the returned object ends.
  [[nodiscard]] RecordSpan during(RunPhase phase, int64_t step) {
    enter(phase, step);
    return {spans_, {.step = step, .kind = SpanKind::phase, .detail = uint8_t(phase)}};
  }
  void set(const Activity& activity) {
    now_ = activity;
    control_.activity(now_);
  }
  /// Sets the progress of the current phase. `done` must not decrease.
  void progress(uint64_t done, uint64_t total, bool in_bytes) {
    now_.done = done;
    now_.total = total;
    now_.in_bytes = in_bytes;
    control_.activity(now_);
  }
  /// Calls work() and reports a wait for `whom` meanwhile. For waits that are not on a communicator (the
  /// supervisor).
  template <typename Work>
  auto waiting(const char* whom, const char* operation, Work work) {
    const RecordSpan span(spans_, named_span(spans_, SpanKind::part, operation, now_.step));
    Activity wait = now_;
    wait.kind = Activity::waiting;
    wait.communicator = whom;
    wait.operation = operation;
    control_.activity(wait);
    const auto result = work();
    control_.activity(now_);
    return result;
  }
  SpanRecorder* spans() const { return spans_; }
  /// Whether waits and exchanges are recorded, as they are at first: something long must not take all the room
  /// of a trace.
  void record_details(bool yes) { records_details_ = yes; }

  void blocked(const std::string& communicator, const char* operation) noexcept override {
    wait_ = now_;
    wait_.kind = Activity::waiting;
    wait_.communicator = communicator;
    wait_.operation = operation;
    blocked_ns_ = observes_exchanges() ? spans_->now_ns() : -1;
  }
  void begin_missing() noexcept override {
    wait_.peer_count = 0;
    wait_.more_peers = false;
  }
  void missing(int world_rank) noexcept override { wait_.add_peer(world_rank); }
  void end_missing() noexcept override { control_.activity(wait_); }
  void resumed() noexcept override {
    if (blocked_ns_ >= 0) record_wait();
    control_.activity(now_);
  }

  bool observes_exchanges() const noexcept override { return spans_ && spans_->on() && records_details_; }
  parallel::ExchangeNote exchange_began(const parallel::Communicator& communicator,
                                        std::span<const parallel::Transfer> transfers) noexcept override;
  void exchange_ended(const parallel::ExchangeNote& note) noexcept override;

  void device_blocked(const std::string& communicator, const std::string& operation, std::span<const int> peers) noexcept override {
    Activity wait{.kind = Activity::waiting, .communicator = communicator, .operation = operation};
    for (const int peer : peers) wait.add_peer(peer);
    const std::lock_guard lock(device_);
    control_.device_activity(wait);
  }
  void device_resumed() noexcept override {
    const std::lock_guard lock(device_);
    control_.device_activity({});
  }

 private:
  void record_wait() noexcept;
  Control& control_;
  SpanRecorder* const spans_;
  const parallel::ObserveWaits observe_;
  Activity now_, wait_;
  int64_t blocked_ns_ = -1;   // of a wait that is recorded
  bool records_details_ = true;
  std::mutex device_;   // one writer of the device's activity at a time
};

}  // namespace trainctl
