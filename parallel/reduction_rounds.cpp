#include "parallel/reduction_rounds.h"

#include <utility>

#include "parallel/halving.h"
#include "parallel/slices.h"

namespace trainctl::parallel::sharding {
namespace {

class HalvingReduction : public ReductionRounds {
 public:
  HalvingReduction(const Layout& layout, kernels::Backend& backend, kernels::Stream& sums)
      : rounds_(halving_rounds(layout.dp_rank, layout.dp)), backend_(backend), sums_(sums) {}

  int count() const override { return int(rounds_.size()); }

  void add_messages(const PackedBucket& b, int r, int tag, std::vector<Transfer>& messages) const override {
    const HalvingRound& round = rounds_[size_t(r)];
    const Elements give = b.places->places(round.give.begin, round.give.end), keep = kept(b, round);
    if (give.count() > 0)
      messages.push_back({Transfer::send, round.peer, b.sums + give.begin, size_t(give.count()) * 4, tag});
    if (keep.count() > 0)
      messages.push_back({Transfer::receive, round.peer, b.received, size_t(keep.count()) * 4, tag});
  }

  void add_sums(const PackedBucket& b, int r) override {
    const HalvingRound& round = rounds_[size_t(r)];
    const Elements keep = kept(b, round);
    if (keep.count() == 0) return;
    float* const mine = b.sums + keep.begin;
    const void* inputs[2] = {mine, b.received};
    if (round.peer_is_first) std::swap(inputs[0], inputs[1]);
    backend_.tree_sum(sums_, inputs, r + 1 == count() ? b.own : mine, DType::f32, keep.count());
  }

 private:
  static Elements kept(const PackedBucket& b, const HalvingRound& round) {
    return b.places->places(round.keep.begin, round.keep.end);
  }

  const std::vector<HalvingRound> rounds_;
  kernels::Backend& backend_;
  kernels::Stream& sums_;
};

class SlicesReduction : public ReductionRounds {
 public:
  SlicesReduction(const Layout& layout, kernels::Backend& backend, kernels::Stream& sums)
      : rank_(layout.dp_rank), ranks_(layout.dp), backend_(backend), sums_(sums) {
    std::vector<LaneRun> all;
    for (int r = 0; r < ranks_; ++r) {
      const std::vector<LaneRun> subtrees = subtrees_of(lanes_of_rank(layout.plan.lanes, ranks_, r));
      subtrees_.push_back(int(subtrees.size()));
      all.insert(all.end(), subtrees.begin(), subtrees.end());
    }
    additions_ = additions_of(all);
    list_.reserve(all.size());
  }

  int count() const override { return 2; }

  void add_messages(const PackedBucket& b, int round, int tag,
                    std::vector<Transfer>& messages) const override {
    round == 0 ? deal_slices(b, tag, messages) : send_to_owners(b, tag, messages);
  }

  void add_sums(const PackedBucket& b, int round) override {
    const Elements slice = slice_of(b.places->count(), rank_, ranks_);
    float* const summed = b.sums + slice.begin;
    if (round == 0) {
      list_sums(b, slice);
      for (size_t i = 0; i < additions_.size() && slice.count() > 0; ++i) {
        const auto [into, from] = additions_[i];
        const void* inputs[2] = {list_[size_t(into)], list_[size_t(from)]};
        float* const out = i + 1 == additions_.size() ? summed : list_[size_t(into)];
        backend_.tree_sum(sums_, inputs, out, DType::f32, slice.count());
      }
      return;
    }
    const Elements part = b.places->part(rank_), own = intersection(slice, part);
    if (own.count() > 0)
      backend_.copy(sums_, kernels::matrix(b.sums + own.begin, DType::f32, 1, own.count()),
                    kernels::matrix(b.own + (own.begin - part.begin), DType::f32, 1, own.count()));
  }

 private:
  /// Every rank brings its own slice of this rank's sums; the peers' come one after another, in the order of
  /// ranks.
  void deal_slices(const PackedBucket& b, int tag, std::vector<Transfer>& messages) const {
    const int64_t all = b.places->count(), mine = slice_of(all, rank_, ranks_).count();
    float* received = b.received;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      const Elements slice = slice_of(all, peer, ranks_);
      for (int i = 0; i < subtrees_[size_t(rank_)] && slice.count() > 0; ++i)
        messages.push_back(
            {Transfer::send, peer, b.sums + i * all + slice.begin, size_t(slice.count()) * 4, tag});
      for (int i = 0; i < subtrees_[size_t(peer)] && mine > 0; ++i, received += mine)
        messages.push_back({Transfer::receive, peer, received, size_t(mine) * 4, tag});
    }
  }

  void send_to_owners(const PackedBucket& b, int tag, std::vector<Transfer>& messages) const {
    const int64_t all = b.places->count();
    const Elements slice = slice_of(all, rank_, ranks_), part = b.places->part(rank_);
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      const Elements give = intersection(slice, b.places->part(peer));
      const Elements take = intersection(slice_of(all, peer, ranks_), part);
      if (give.count() > 0)
        messages.push_back({Transfer::send, peer, b.sums + give.begin, size_t(give.count()) * 4, tag});
      if (take.count() > 0)
        messages.push_back(
            {Transfer::receive, peer, b.own + (take.begin - part.begin), size_t(take.count()) * 4, tag});
    }
  }

  /// Where this rank's slice of each subtree's sum is, in the order of lanes.
  void list_sums(const PackedBucket& b, Elements slice) {
    list_.clear();
    float* received = b.received;
    for (int r = 0; r < ranks_; ++r)
      for (int i = 0; i < subtrees_[size_t(r)]; ++i)
        list_.push_back(r == rank_ ? b.sums + i * b.places->count() + slice.begin
                                   : std::exchange(received, received + slice.count()));
  }

  const int rank_, ranks_;
  std::vector<int> subtrees_;  // of each rank
  std::vector<Addition> additions_;
  std::vector<float*> list_;
  kernels::Backend& backend_;
  kernels::Stream& sums_;
};

}  // namespace

std::unique_ptr<ReductionRounds> make_reduction_rounds(const Layout& layout, kernels::Backend& backend,
                                                       kernels::Stream& sums) {
  if (exchange_among(layout.dp) == Exchange::halving)
    return std::make_unique<HalvingReduction>(layout, backend, sums);
  return std::make_unique<SlicesReduction>(layout, backend, sums);
}

}  // namespace trainctl::parallel::sharding
