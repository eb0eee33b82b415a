#include "parallel/tally.h"

#include "parallel/transfer_rules.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

/// Counts what one rank exchanges in one group.
class GroupCount {
 public:
  GroupCount(TrafficGroup group, TrafficTally& tally)
      : group_(group), tally_(tally), sent_(tally.sent_bytes[group]) {}
  double sent() const { return sent_; }
  void add(int rank, std::span<const Transfer> transfers) {
    for (const Transfer& t : transfers)
      if (t.peer != rank) add(t.kind == Transfer::send ? Way::send : Way::receive, t.peer, t.bytes);
  }
  void add(int rank, std::span<const Reduction> reductions) {
    for (const Reduction& r : reductions)
      if (r.root != rank) add(Way::contribute, r.root, size_t(r.count) * size_of(r.dtype));
  }

 private:
  void add(Way way, int peer, size_t bytes) {
    if (way != Way::receive) sent_ += double(bytes);
    if (tally_.detailed) ++tally_.messages[{group_, way, peer, bytes}];
  }

  const TrafficGroup group_;
  TrafficTally& tally_;
  double& sent_;
};

class TallyCommunicator final : public Communicator {
 public:
  TallyCommunicator(TrafficGroup group, int rank, int size, TrafficTally& tally, bool adds)
      : group_(group),
        tally_(tally),
        name_(word_of(group)),
        rank_(rank),
        size_(size),
        count_(group, tally),
        adds_(adds) {
    ENSURE(rank >= 0 && rank < size, "rank {} of {}", rank, size);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  Ticket exchange(std::span<const Transfer> transfers, kernels::Stream*) override {
    check_transfers(*this, transfers);
    count_.add(rank_, transfers);
    return Ticket(std::make_unique<Ticket::State>());
  }
  bool test(Ticket& ticket) override {
    ticket.reset();
    return true;
  }
  using Communicator::wait;
  void wait(Ticket& ticket, const char*) override { ticket.reset(); }
  bool reduces() const override { return adds_; }
  Ticket reduce(std::span<const Reduction> reductions, kernels::Stream*) override {
    count_.add(rank_, reductions);
    return Ticket(std::make_unique<Ticket::State>());
  }
  std::unique_ptr<Communicator> subgroup(const Subgroup& group) override {
    return std::make_unique<TallyCommunicator>(group_, place_in(group, rank_, size_), int(group.members.size()),
                                               tally_, adds_);
  }
  std::unique_ptr<Communicator> twin() override { ENSURE(false, "{}: no transport is built on it", name()); }
  int world_rank(int r) const override { return r; }
  double deadline_s() const override { return 0; }
  void set_deadline(double) override {}
  double waited_s() const override { return 0; }
  uint64_t sent_bytes() const override { return uint64_t(count_.sent()); }

 private:
  const TrafficGroup group_;
  TrafficTally& tally_;
  const std::string name_;
  int rank_, size_;
  GroupCount count_;
  bool adds_;
};

/// Forwards every call, also those with a default in the base class: the transport may override
/// them.
class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> real, GroupOfName group_of, TrafficTally& tally)
      : real_(std::move(real)), group_of_(group_of), count_(group_of(real_->name()), tally), tally_(tally) {}
  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  const std::string& name() const override { return real_->name(); }
  Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after) override {
    count_.add(rank(), transfers);
    return real_->exchange(transfers, after);
  }
  bool test(Ticket& ticket) override { return real_->test(ticket); }
  void wait(Ticket& ticket, const char* what) override { real_->wait(ticket, what); }
  void wait(Ticket& ticket, const char* what, kernels::Stream& then) override {
    real_->wait(ticket, what, then);
  }
  void exchange_and_wait(std::span<const Transfer> transfers, const char* what) override {
    count_.add(rank(), transfers);
    real_->exchange_and_wait(transfers, what);
  }
  void exchange_and_wait(std::span<const Transfer> transfers, const char* what,
                         kernels::Stream& stream) override {
    count_.add(rank(), transfers);
    real_->exchange_and_wait(transfers, what, stream);
  }
  bool waits_on_device() const override { return real_->waits_on_device(); }
  bool reduces() const override { return real_->reduces(); }
  Ticket reduce(std::span<const Reduction> reductions, kernels::Stream* after) override {
    count_.add(rank(), reductions);
    return real_->reduce(reductions, after);
  }
  void check() override { real_->check(); }
  Communicator& host() override { return real_->host(); }
  std::unique_ptr<Communicator> subgroup(const Subgroup& group) override {
    return counting(real_->subgroup(group));
  }
  std::unique_ptr<Communicator> twin() override { return counting(real_->twin()); }
  int world_rank(int r) const override { return real_->world_rank(r); }
  double deadline_s() const override { return real_->deadline_s(); }
  void set_deadline(double seconds) override { real_->set_deadline(seconds); }
  double waited_s() const override { return real_->waited_s(); }
  uint64_t sent_bytes() const override { return real_->sent_bytes(); }

 private:
  std::unique_ptr<Communicator> counting(std::unique_ptr<Communicator> part) {
    return std::make_unique<CountingCommunicator>(std::move(part), group_of_, tally_);
  }

  const std::unique_ptr<Communicator> real_;
  const GroupOfName group_of_;
  GroupCount count_;
  TrafficTally& tally_;
};

}  // namespace

double TrafficTally::sent(TrafficGroup group) const {
  const auto found = sent_bytes.find(group);
  return found == sent_bytes.end() ? 0 : found->second;
}

void TrafficTally::clear() {
  messages.clear();
  for (auto& [group, bytes] : sent_bytes) bytes = 0;
}

std::unique_ptr<Communicator> make_counting_communicator(std::unique_ptr<Communicator> real,
                                                         GroupOfName group_of, TrafficTally& tally) {
  return std::make_unique<CountingCommunicator>(std::move(real), group_of, tally);
}

std::unique_ptr<Communicator> make_tally_communicator(TrafficGroup group, int rank, int size,
                                                      TrafficTally& tally, bool adds) {
  return std::make_unique<TallyCommunicator>(group, rank, size, tally, adds);
}

}  // namespace trainctl::parallel
