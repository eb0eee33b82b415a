#include "test/support/modelled_links.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/base/error.h"

namespace trainctl::test {

using parallel::Communicator;
using parallel::Ticket;
using parallel::Transfer;

double thread_cpu_s() {
  timespec t;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

ModelledNetwork::ModelledNetwork(int ranks, LinkSpeed speed) : speed_(speed), ranks_(size_t(ranks)) {}

LinkUse ModelledNetwork::use(int rank) const {
  const std::lock_guard lock(mutex_);
  return ranks_[size_t(rank)].use;
}

ModelledNetwork::Messages ModelledNetwork::begin(int rank, const Communicator& group,
                                                 std::span<const Transfer> transfers, double now_s) {
  const std::lock_guard lock(mutex_);
  Rank& own = ranks_[size_t(rank)];
  own.now_s = now_s;
  Messages messages;
  messages.sent_s = now_s;
  size_t sent = 0, received = 0;
  for (const Transfer& t : transfers) {
    const int peer = group.world_rank(t.peer);
    if (peer == rank) continue;
    if (t.kind == Transfer::send) {
      own.send_free_s = std::max(own.send_free_s, now_s) + speed_.seconds(t.bytes);
      messages.sent_s = own.send_free_s;
      const Channel channel{group.name(), rank, peer, t.tag};
      Arrivals& arrivals = channels_[channel];
      messages.sends.push_back({channel, arrivals.sends});
      arrivals.at_s[arrivals.sends++] = own.send_free_s + speed_.latency_s;
      sent += t.bytes;
    } else {
      const Channel channel{group.name(), peer, rank, t.tag};
      messages.receives.push_back({channel, channels_[channel].receives++, t.bytes});
      received += t.bytes;
    }
  }
  const size_t most = std::max(sent, received);
  ++own.use.exchanges;
  own.use.bytes += most;
  own.use.transfer_s += speed_.latency_s + speed_.seconds(most);
  changed_.notify_all();
  return messages;
}

bool ModelledNetwork::all_sent(const Messages& messages) const {
  const auto is_received = [&](const auto& send) { return channels_.at(send.first).receives > send.second; };
  const auto is_sent = [&](const Receive& r) {
    return r.at_s >= 0 || channels_.at(r.channel).at_s.count(r.number) > 0;
  };
  return std::all_of(messages.sends.begin(), messages.sends.end(), is_received) &&
         std::all_of(messages.receives.begin(), messages.receives.end(), is_sent);
}

/// All must be sent.
double ModelledNetwork::come_at(int rank, Messages& messages) {
  double& free_s = ranks_[size_t(rank)].receive_free_s;
  double last_s = messages.sent_s;
  for (Receive& r : messages.receives) {
    if (r.at_s < 0) {
      const auto sent = channels_.at(r.channel).at_s.extract(r.number);
      const double duration_s = speed_.seconds(r.bytes);
      free_s = std::max(free_s, sent.mapped() - duration_s) + duration_s;
      r.at_s = free_s;
    }
    last_s = std::max(last_s, r.at_s);
  }
  return last_s;
}

/// A rank that waits sends nothing until its messages were sent, by one that does not wait.
bool ModelledNetwork::may_send_before(const Rank& rank, double time_s) const {
  return !rank.has_ended && !rank.is_outside && rank.now_s < time_s &&
         !(rank.waits_for && !all_sent(*rank.waits_for));
}

bool ModelledNetwork::have_come(int rank, Messages& messages, double now_s, double limit_s) {
  std::unique_lock lock(mutex_);
  ranks_[size_t(rank)].now_s = now_s;
  changed_.notify_all();
  const auto is_known = [&] {
    return all_sent(messages) || std::none_of(ranks_.begin(), ranks_.end(),
                                              [&](const Rank& r) { return may_send_before(r, now_s); });
  };
  ENSURE(changed_.wait_for(lock, std::chrono::duration<double>(limit_s), is_known),
         "rank {}: another rank made no progress within {} s", rank, limit_s);
  return all_sent(messages) && come_at(rank, messages) <= now_s;
}

double ModelledNetwork::wait(int rank, Messages& messages, double now_s, double limit_s) {
  std::unique_lock lock(mutex_);
  Rank& own = ranks_[size_t(rank)];
  own.now_s = now_s;
  own.waits_for = &messages;
  changed_.notify_all();
  const auto is_over = [&] {
    const auto has_ended = [&](int peer) { return ranks_[size_t(peer)].has_ended; };
    return all_sent(messages) ||
           std::any_of(messages.sends.begin(), messages.sends.end(),
                       [&](const auto& send) { return has_ended(std::get<2>(send.first)); }) ||
           std::any_of(messages.receives.begin(), messages.receives.end(),
                       [&](const Receive& r) { return r.at_s < 0 && has_ended(std::get<1>(r.channel)); });
  };
  changed_.wait_for(lock, std::chrono::duration<double>(limit_s), is_over);
  own.waits_for = nullptr;
  const double end_s = all_sent(messages) ? std::max(now_s, come_at(rank, messages)) : now_s;
  own.use.waited_s += end_s - now_s;
  own.now_s = end_s;
  changed_.notify_all();
  return end_s;
}

void ModelledNetwork::set_outside(int rank, bool is_outside, double now_s) {
  const std::lock_guard lock(mutex_);
  ranks_[size_t(rank)].is_outside = is_outside;
  ranks_[size_t(rank)].now_s = now_s;
  changed_.notify_all();
}

void ModelledNetwork::end(int rank) {
  const std::lock_guard lock(mutex_);
  ranks_[size_t(rank)].has_ended = true;
  changed_.notify_all();
}

/// What the transport below takes is no time of the rank.
class LinkedCommunicator final : public Communicator {
 public:
  using Carries = std::function<bool(const std::string&)>;
  LinkedCommunicator(std::unique_ptr<Communicator> real, ModelledNetwork& network, RankClock& clock,
                     Carries carries, bool is_world)
      : real_(std::move(real)),
        network_(network),
        clock_(clock),
        carries_(std::move(carries)),
        is_carried_(carries_(real_->name())),
        is_world_(is_world),
        own_(real_->world_rank(real_->rank())) {
    ENSURE(&real_->host() == real_.get() && !real_->reduces(), "{}: no transport of host memory", name());
  }
  ~LinkedCommunicator() override {
    if (is_world_) network_.end(own_);
  }
  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  const std::string& name() const override { return real_->name(); }

  Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after) override {
    if (!is_carried_) return real_->exchange(transfers, after);
    if (after) after->synchronize();
    const double now_s = clock_.monotonic_s();
    auto ticket = std::make_unique<LinkedTicket>();
    ticket->real = real_->exchange(transfers, nullptr);
    ticket->messages = network_.begin(own_, *real_, transfers, now_s);
    clock_.set(now_s);
    return Ticket(std::move(ticket));
  }
  bool test(Ticket& ticket) override {
    if (!is_carried_ || !ticket) return real_->test(ticket);
    const double now_s = clock_.monotonic_s();
    LinkedTicket& pending = own(ticket);
    const bool done = network_.have_come(own_, pending.messages, now_s, deadline_s());
    if (done) {
      wait_outside(pending.real, "poll", now_s);
      ticket.reset();
    }
    clock_.set(now_s);
    return done;
  }
  using Communicator::wait;
  void wait(Ticket& ticket, const char* what) override {
    if (!ticket) return;
    const double now_s = clock_.monotonic_s();
    if (!is_carried_) {
      wait_outside(ticket, what, now_s);
      return clock_.set(now_s);
    }
    Ticket taken = std::move(ticket);  // emptied on every way out
    LinkedTicket& pending = own(taken);
    const double end_s = network_.wait(own_, pending.messages, now_s, deadline_s());
    wait_outside(pending.real, what, end_s);
    clock_.set(end_s);
  }

  std::unique_ptr<Communicator> subgroup(const parallel::Subgroup& group) override {
    return std::make_unique<LinkedCommunicator>(real_->subgroup(group), network_, clock_, carries_, false);
  }
  std::unique_ptr<Communicator> twin() override { ENSURE(false, "{}: no transport is built on it", name()); }
  void check() override { real_->check(); }
  int world_rank(int r) const override { return real_->world_rank(r); }
  double deadline_s() const override { return real_->deadline_s(); }
  void set_deadline(double seconds) override { real_->set_deadline(seconds); }
  double waited_s() const override { return is_carried_ ? network_.use(own_).waited_s : real_->waited_s(); }
  uint64_t sent_bytes() const override { return real_->sent_bytes(); }

 private:
  struct LinkedTicket final : Ticket::State {
    Ticket real;
    ModelledNetwork::Messages messages;
  };
  /// For the real transport: a sent message stays with it until it is received.
  void wait_outside(Ticket& ticket, const char* what, double now_s) {
    network_.set_outside(own_, true, now_s);
    real_->wait(ticket, what);
    network_.set_outside(own_, false, now_s);
  }
  LinkedTicket& own(Ticket& ticket) const {
    auto* pending = dynamic_cast<LinkedTicket*>(ticket.state());
    ENSURE(pending != nullptr, "{}: a ticket of another transport", name());
    return *pending;
  }

  const std::unique_ptr<Communicator> real_;
  ModelledNetwork& network_;
  RankClock& clock_;
  const Carries carries_;
  const bool is_carried_, is_world_;
  const int own_;  // world rank
};

std::unique_ptr<Communicator> make_linked_communicator(std::unique_ptr<Communicator> real,
                                                       ModelledNetwork& network, RankClock& clock,
                                                       std::function<bool(const std::string&)> carries) {
  return std::make_unique<LinkedCommunicator>(std::move(real), network, clock, std::move(carries), true);
}

}  // namespace trainctl::test
