#include "parallel/reduction_rounds.h"

#include <utility>

#include "parallel/halving.h"
#include "parallel/lane_sums.h"
#include "parallel/slices.h"

namespace trainctl::parallel::sharding {
namespace {

Transfer message(Transfer::Kind kind, int peer, const kernels::Matrix& m, int tag) {
  return {kind, peer, m.data, size_t(m.count()) * size_of(m.dtype), tag};
}

kernels::Matrix floats(float* data, int64_t count) { return kernels::matrix(data, DType::f32, 1, count); }

class HalvingReduction : public ReductionRounds {
 public:
  HalvingReduction(const LaneLine& line, int rank, kernels::Backend& backend, kernels::Stream& sums)
      : rounds_(halving_rounds(rank, line.ranks)), backend_(backend), sums_(sums) {}

  int count() const override { return int(rounds_.size()); }
  int last_before_own() const override { return count() - 1; }

  void add_messages(const PackedBucket& b, int r, int tag, std::vector<Transfer>& messages) const override {
    const HalvingRound& round = rounds_[size_t(r)];
    const Elements give = b.places->places(round.give.begin, round.give.end), keep = kept(b, round);
    if (give.count() > 0)
      messages.push_back(message(Transfer::send, round.peer, b.in(b.sums, give.begin, give.count()), tag));
    if (keep.count() > 0)
      messages.push_back(message(Transfer::receive, round.peer, b.in(b.received, 0, keep.count()), tag));
  }

  void add_sums(const PackedBucket& b, int r) override {
    const HalvingRound& round = rounds_[size_t(r)];
    const Elements keep = kept(b, round);
    if (keep.count() == 0) return;
    const kernels::Matrix mine = b.in(b.sums, keep.begin, keep.count());
    kernels::Matrix left = mine, right = b.in(b.received, 0, keep.count());
    if (round.peer_is_first) std::swap(left, right);
    const bool last = r + 1 == count();
    add_lanes(backend_, sums_, b.dtype, left, right, last ? floats(b.own, keep.count()) : mine);
  }

 private:
  static Elements kept(const PackedBucket& b, const HalvingRound& round) {
    return b.places->places(round.keep.begin, round.keep.end);
  }

  const std::vector<HalvingRound> rounds_;
  kernels::Backend& backend_;
  kernels::Stream& sums_;
};

class DirectReduction : public ReductionRounds {
 public:
  DirectReduction(const LaneLine& line, int rank, kernels::Backend& backend, kernels::Stream& sums)
      : rank_(rank), ranks_(line.ranks), backend_(backend), sums_(sums) {
    std::vector<LaneRun> all;
    for (int r = 0; r < ranks_; ++r) {
      const std::vector<LaneRun> subtrees = subtrees_of(lanes_of_rank(line.lanes, ranks_, r));
      subtrees_.push_back(int(subtrees.size()));
      all.insert(all.end(), subtrees.begin(), subtrees.end());
    }
    additions_ = additions_of(all);
    list_.reserve(all.size());
  }

  int count() const override { return 2; }
  int last_before_own() const override { return 0; }  // the sums of others are received in their place

  void add_messages(const PackedBucket& b, int round, int tag,
                    std::vector<Transfer>& messages) const override {
    round == 0 ? deal_slices(b, tag, messages) : send_to_owners(b, tag, messages);
  }

  void add_sums(const PackedBucket& b, int round) override {
    const Elements slice = slice_of(b.places->count(), rank_, ranks_);
    if (slice.count() == 0) return;
    if (round == 0) {
      list_sums(b, slice);
      for (size_t i = 0; i < additions_.size(); ++i) {
        const kernels::Matrix &into = list_[size_t(additions_[i].into)],
                              &from = list_[size_t(additions_[i].from)];
        add_lanes(backend_, sums_, b.dtype, into, from, i + 1 == additions_.size() ? root(b, slice) : into);
      }
      return;
    }
    const Elements part = b.places->part(rank_), own = intersection(slice, part);
    if (own.count() > 0)
      backend_.run(sums_, kernels::Copy{.src = of_root(b, slice, own),
                                        .dst = floats(b.own + (own.begin - part.begin), own.count())});
  }

 private:
  /// Where the sum of this rank's slice over all ranks is: in f32, so with bf16 in other memory than the sums
  /// that it is made of.
  static kernels::Matrix root(const PackedBucket& b, Elements slice) {
    return b.dtype == DType::f32 ? b.in(b.sums, slice.begin, slice.count()) : floats(b.root, slice.count());
  }
  static kernels::Matrix of_root(const PackedBucket& b, Elements slice, Elements part) {
    return floats(root(b, slice).as<float>() + (part.begin - slice.begin), part.count());
  }

  /// Every rank brings its own slice of this rank's sums; the peers' come one after another, in the order of
  /// ranks.
  void deal_slices(const PackedBucket& b, int tag, std::vector<Transfer>& messages) const {
    const int64_t all = b.places->count(), mine = slice_of(all, rank_, ranks_).count();
    int64_t received = 0;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      const Elements slice = slice_of(all, peer, ranks_);
      for (int i = 0; i < subtrees_[size_t(rank_)] && slice.count() > 0; ++i)
        messages.push_back(
            message(Transfer::send, peer, b.in(b.sums, i * all + slice.begin, slice.count()), tag));
      for (int i = 0; i < subtrees_[size_t(peer)] && mine > 0; ++i, received += mine)
        messages.push_back(message(Transfer::receive, peer, b.in(b.received, received, mine), tag));
    }
  }

  void send_to_owners(const PackedBucket& b, int tag, std::vector<Transfer>& messages) const {
    const int64_t all = b.places->count();
    const Elements slice = slice_of(all, rank_, ranks_), part = b.places->part(rank_);
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      const Elements give = intersection(slice, b.places->part(peer));
      const Elements take = intersection(slice_of(all, peer, ranks_), part);
      if (give.count() > 0) messages.push_back(message(Transfer::send, peer, of_root(b, slice, give), tag));
      if (take.count() > 0)
        messages.push_back(
            message(Transfer::receive, peer, floats(b.own + (take.begin - part.begin), take.count()), tag));
    }
  }

  /// Where this rank's slice of each subtree's sum is, in the order of lanes.
  void list_sums(const PackedBucket& b, Elements slice) {
    list_.clear();
    int64_t received = 0;
    for (int r = 0; r < ranks_; ++r)
      for (int i = 0; i < subtrees_[size_t(r)]; ++i)
        list_.push_back(
            r == rank_ ? b.in(b.sums, i * b.places->count() + slice.begin, slice.count())
                       : b.in(b.received, std::exchange(received, received + slice.count()), slice.count()));
  }

  const int rank_, ranks_;
  std::vector<int> subtrees_;  // of each rank
  std::vector<Addition> additions_;
  std::vector<kernels::Matrix> list_;
  kernels::Backend& backend_;
  kernels::Stream& sums_;
};

}  // namespace

ReductionWays::ReductionWays(const Layout& layout, int line, kernels::Backend& backend,
                             kernels::Stream& sums) {
  const LaneLine& ranks = layout.plan.lines[size_t(line)];
  const int rank = layout.shares[size_t(line)].rank;
  const auto make = [&](Exchange exchange) {
    if (exchange == Exchange::halving && !halving_)
      halving_ = std::make_unique<HalvingReduction>(ranks, rank, backend, sums);
    if (exchange == Exchange::direct && !direct_)
      direct_ = std::make_unique<DirectReduction>(ranks, rank, backend, sums);
  };
  for (const GroupPlan& group : layout.plan.groups)
    for (const Bucket& bucket : group.buckets)
      if (group.line == line) make(bucket.exchange);
}

}  // namespace trainctl::parallel::sharding
