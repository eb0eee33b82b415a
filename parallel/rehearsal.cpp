#include "parallel/rehearsal.h"

namespace trainctl::parallel {

namespace {

/// Forwards every call, also those with a default in the base class: the transport may override them.
class Rehearsable final : public Communicator {
 public:
  Rehearsable(std::unique_ptr<Communicator> real, const bool& rehearsing, std::set<int>& peers)
      : real_(std::move(real)), rehearsing_(rehearsing), peers_(peers) {}

  int rank() const override { return real_->rank(); }
  int size() const override { return real_->size(); }
  const std::string& name() const override { return real_->name(); }

  Ticket exchange(std::span<const Transfer> transfers, kernels::Stream* after) override {
    return rehearses(transfers) ? Ticket() : real_->exchange(transfers, after);
  }
  bool test(Ticket& ticket) override { return !ticket || real_->test(ticket); }
  void wait(Ticket& ticket, const char* what) override {
    if (ticket) real_->wait(ticket, what);
  }
  void wait(Ticket& ticket, const char* what, kernels::Stream& then) override {
    if (ticket) real_->wait(ticket, what, then);
  }
  void exchange_and_wait(std::span<const Transfer> transfers, const char* what) override {
    if (!rehearses(transfers)) real_->exchange_and_wait(transfers, what);
  }
  void exchange_and_wait(std::span<const Transfer> transfers, const char* what, kernels::Stream& stream) override {
    if (!rehearses(transfers)) real_->exchange_and_wait(transfers, what, stream);
  }
  bool waits_on_device() const override { return real_->waits_on_device(); }
  bool reduces() const override { return real_->reduces(); }
  Ticket reduce(std::span<const Reduction> reductions, kernels::Stream* after) override {
    if (!rehearsing_) return real_->reduce(reductions, after);
    for (int r = 0; r < size(); ++r)
      if (r != rank()) peers_.insert(r);
    return Ticket();
  }
  void check() override { real_->check(); }
  Communicator& host() override { return real_->host(); }

  std::unique_ptr<Communicator> subgroup(const Subgroup& group) override { return real_->subgroup(group); }
  void connect(std::span<const int> peers) override { real_->connect(peers); }
  std::unique_ptr<Communicator> twin() override { return real_->twin(); }
  int world_rank(int r) const override { return real_->world_rank(r); }
  double deadline_s() const override { return real_->deadline_s(); }
  void set_deadline(double seconds) override { real_->set_deadline(seconds); }
  double waited_s() const override { return real_->waited_s(); }
  uint64_t sent_bytes() const override { return real_->sent_bytes(); }

 private:
  bool rehearses(std::span<const Transfer> transfers) const {
    if (rehearsing_)
      for (const Transfer& t : transfers)
        if (t.peer != rank()) peers_.insert(t.peer);
    return rehearsing_;
  }

  const std::unique_ptr<Communicator> real_;
  const bool& rehearsing_;
  std::set<int>& peers_;
};

}  // namespace

std::unique_ptr<Communicator> make_rehearsable(std::unique_ptr<Communicator> communicator,
                                               const bool& rehearsing, std::set<int>& peers) {
  return std::make_unique<Rehearsable>(std::move(communicator), rehearsing, peers);
}

}  // namespace trainctl::parallel
