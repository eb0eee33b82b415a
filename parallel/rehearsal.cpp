#include "parallel/rehearsal.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/transfer_rules.h"
#include "runtime/base/error.h"

namespace trainctl::parallel {

namespace {

/// Forwards every call, also those with a default in the base class: the transport may override them.
class Rehearsable final : public Communicator {
 public:
  Rehearsable(std::unique_ptr<Communicator> real, const bool& rehearsing, Rehearsed& rehearsed)
      : real_(std::move(real)), rehearsing_(rehearsing), rehearsed_(rehearsed) {}

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
    for (const Reduction& sum : reductions)
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        rehearsed_[r].sent.add(size_t(sum.count) * size_of(sum.dtype));
        rehearsed_[r].received.add(size_t(sum.count) * size_of(sum.dtype));
      }
    return Ticket();
  }
  void check() override { real_->check(); }
  Communicator& host() override { return real_->host(); }

  std::unique_ptr<Communicator> subgroup(const Subgroup& group) override { return real_->subgroup(group); }
  void connect(std::span<const int> peers) override {
    compare_with(peers);
    real_->connect(peers);
  }
  std::unique_ptr<Communicator> twin() override { return real_->twin(); }
  int world_rank(int r) const override { return real_->world_rank(r); }
  double deadline_s() const override { return real_->deadline_s(); }
  void set_deadline(double seconds) override { real_->set_deadline(seconds); }
  double waited_s() const override { return real_->waited_s(); }
  uint64_t sent_bytes() const override { return real_->sent_bytes(); }

 private:
  bool rehearses(std::span<const Transfer> transfers) {
    if (!rehearsing_) return false;
    std::vector<Transfer> sorted(transfers.begin(), transfers.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Transfer& a, const Transfer& b) { return a.tag < b.tag; });
    for (const Transfer& t : sorted) {
      if (t.peer == rank()) continue;
      RehearsedMessages& with = rehearsed_[t.peer];
      if (t.bytes > 0) (t.kind == Transfer::send ? with.sent : with.received).add(t.bytes);
    }
    return true;
  }

  void compare_with(std::span<const int> peers) const {
    std::vector<RehearsedMessages> own(peers.size()), others(peers.size());
    std::vector<Transfer> transfers;
    for (size_t i = 0; i < peers.size(); ++i) {
      if (const auto found = rehearsed_.find(peers[i]); found != rehearsed_.end()) own[i] = found->second;
      transfers.push_back({Transfer::send, peers[i], &own[i], sizeof own[i], kInternalTag});
      transfers.push_back({Transfer::receive, peers[i], &others[i], sizeof others[i], kInternalTag});
    }
    if (transfers.empty()) return;
    real_->host().exchange_and_wait(transfers, "compare the rehearsed messages");
    for (size_t i = 0; i < peers.size(); ++i) {
      const int here = world_rank(rank()), there = world_rank(peers[i]);
      require_equal(here, own[i].sent, there, others[i].received);
      require_equal(there, others[i].sent, here, own[i].received);
    }
  }

  void require_equal(int sender, const MessageDigest& sent, int receiver,
                     const MessageDigest& received) const {
    if (sent == received) return;
    const bool same_sums = sent.count == received.count && sent.bytes == received.bytes;
    throw Error(
        ErrorCode::kPreflight,
        fmt::format("{}: in a rehearsed step rank {} sends {} messages of {} bytes in all to rank {}, which "
                    "receives {} of {} bytes{}: the two ranks run different programs; start every rank "
                    "from one job file with one build of trainctl",
                    name(), sender, sent.count, sent.bytes, receiver, received.count, received.bytes,
                    same_sums ? ", in another order of sizes" : ""));
  }

  const std::unique_ptr<Communicator> real_;
  const bool& rehearsing_;
  Rehearsed& rehearsed_;
};

}  // namespace

void MessageDigest::add(uint64_t size) {
  ++count;
  bytes += size;
  // The finalizer of splitmix64, over what came before.
  uint64_t h = hash + size + 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  hash = h ^ (h >> 31);
}

std::unique_ptr<Communicator> make_rehearsable(std::unique_ptr<Communicator> communicator,
                                               const bool& rehearsing, Rehearsed& rehearsed) {
  return std::make_unique<Rehearsable>(std::move(communicator), rehearsing, rehearsed);
}

}  // namespace trainctl::parallel
