// Runs one function on every rank of a thread world. Catch2 assertions belong after it: they are not made for threads.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "parallel/wait_observer.h"
#include "runtime/base/error.h"

namespace trainctl::test {

/// The limit of waits that end: longer than any machine needs, and shorter than ctest waits for the program.
constexpr double kLongS = 600;

/// Makes a rank's communicator from its end of a thread world.
using Wrap = std::function<std::unique_ptr<parallel::Communicator>(std::unique_ptr<parallel::Communicator>)>;

/// Throws the first exception of the lowest rank that is not merely the loss of a peer. A rank that throws ends the waits of
/// the others.
inline void on_rank_threads(int size, double deadline_s, const std::function<void(parallel::Communicator&)>& run,
                            const Wrap& wrap = nullptr) {
  std::vector<std::unique_ptr<parallel::Communicator>> ends = parallel::make_thread_world(size, deadline_s);
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; r++)
    threads.emplace_back([&, r] {
      try {
        if (wrap) ends[r] = wrap(std::move(ends[r]));
        run(*ends[r]);
      } catch (const std::exception& e) {
        errors[r] = std::current_exception();
        if (ends[r]) parallel::abort_thread_world(ends[r]->host(), e.what());
      }
    });
  for (std::thread& t : threads) t.join();
  std::exception_ptr lost_peer;
  for (const std::exception_ptr& error : errors) try {
      if (error) std::rethrow_exception(error);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kPeerLost) throw;
      if (!lost_peer) lost_peer = error;
    }
  if (lost_peer) std::rethrow_exception(lost_peer);
}

/// Gives a wait of its thread a deadline once all that can come has come: when only those are missing that
/// never come. Of transports that look at the deadline while they wait: not of rank threads themselves.
class DeadlineOfTheAbsent final : public parallel::WaitObserver {
 public:
  DeadlineOfTheAbsent(parallel::Communicator& comm, double seconds,
                      std::function<bool(int world_rank)> is_absent)
      : comm_(comm), seconds_(seconds), is_absent_(std::move(is_absent)) {}
  void blocked(const std::string&, const char*) noexcept override {}
  void begin_missing() noexcept override { is_another_missing_ = false; }
  void missing(int world_rank) noexcept override {
    is_another_missing_ = is_another_missing_ || !is_absent_(world_rank);
  }
  void end_missing() noexcept override {
    if (!is_another_missing_) comm_.set_deadline(seconds_);
  }
  void resumed() noexcept override {}

 private:
  parallel::Communicator& comm_;
  const double seconds_;
  const std::function<bool(int)> is_absent_;
  bool is_another_missing_ = false;
};

}  // namespace trainctl::test
