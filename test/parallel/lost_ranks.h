// Rank threads of which some never come: the deadline of a wait begins when all that can come has come, so that a
// busy machine makes no rank late that is not.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "parallel/communicator.h"

namespace trainctl::test {

/// The ranks of a world that do come. Each uses one communicator on one thread; it waits for its exchanges there
/// until they end, or until all of these ranks wait and none of them can go on: then its own deadline begins.
class RanksThatCome {
 public:
  explicit RanksThatCome(int count) : count_(count) {}
  RanksThatCome(const RanksThatCome&) = delete;
  RanksThatCome& operator=(const RanksThatCome&) = delete;

  /// `real`: a rank thread's end of the world. This must outlive the result.
  std::unique_ptr<parallel::Communicator> end_of(std::unique_ptr<parallel::Communicator> real);

 private:
  class End;
  const int count_;
  std::mutex mutex_;  // of every exchange of these ranks, so that nothing comes between two looks
  std::condition_variable changed_;
  int stuck_ = 0;           // have looked in vain since the last exchange began
  bool is_over_ = false;    // none can go on
  uint64_t exchanges_ = 0;  // that have begun
};

class RanksThatCome::End final : public parallel::Communicator {
 public:
  End(RanksThatCome& all, std::unique_ptr<parallel::Communicator> real) : all_(all), real_(std::move(real)) {}
  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  const std::string& name() const override { return real_->name(); }
  int world_rank(int r) const override { return real_->world_rank(r); }
  double deadline_s() const override { return real_->deadline_s(); }
  void set_deadline(double seconds) override { real_->set_deadline(seconds); }
  double waited_s() const override { return real_->waited_s(); }
  uint64_t sent_bytes() const override { return real_->sent_bytes(); }
  Communicator& host() override { return real_->host(); }

  parallel::Ticket exchange(std::span<const parallel::Transfer> transfers, kernels::Stream* after) override {
    const std::lock_guard lock(all_.mutex_);
    parallel::Ticket ticket = real_->exchange(transfers, after);
    ++all_.exchanges_;
    all_.stuck_ = 0;
    all_.changed_.notify_all();
    return ticket;
  }
  bool test(parallel::Ticket& ticket) override {
    const std::lock_guard lock(all_.mutex_);
    return real_->test(ticket);
  }
  using Communicator::wait;
  void wait(parallel::Ticket& ticket, const char* what) override {
    std::unique_lock lock(all_.mutex_);
    while (!all_.is_over_ && !real_->test(ticket)) {
      all_.is_over_ = ++all_.stuck_ == all_.count_;
      all_.changed_.notify_all();
      all_.changed_.wait(lock,
                         [&, seen = all_.exchanges_] { return all_.is_over_ || all_.exchanges_ > seen; });
    }
    lock.unlock();
    real_->wait(ticket, what);
  }
  std::unique_ptr<Communicator> subgroup(const parallel::Subgroup& group) override {
    return real_->subgroup(group);
  }
  std::unique_ptr<Communicator> twin() override { return real_->twin(); }

 private:
  RanksThatCome& all_;
  const std::unique_ptr<parallel::Communicator> real_;
};

inline std::unique_ptr<parallel::Communicator> RanksThatCome::end_of(
    std::unique_ptr<parallel::Communicator> real) {
  return std::make_unique<End>(*this, std::move(real));
}

}  // namespace trainctl::test
