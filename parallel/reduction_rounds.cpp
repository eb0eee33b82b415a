#include "parallel/reduction_rounds.h"

#include <algorithm>
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
    add_lanes(backend_, sums_, b.dtype, left, right, last ? floats(b.own.front(), keep.count()) : mine);
  }

 private:
  static Elements kept(const PackedBucket& b, const HalvingRound& round) {
    return b.places->places(round.keep.begin, round.keep.end);
  }

  const std::vector<HalvingRound> rounds_;
  kernels::Backend& backend_;
  kernels::Stream& sums_;
};

/// The subtrees' sums that each rank brings to a reduction, and how they are added.
struct Brought {
  std::vector<int> subtrees;  // of each rank
  TreeAdditions sums;
  std::vector<int> completes;  // [addition] the result that it completes; -1: none
  std::vector<int> alone;      // results to which nothing is added

  static Brought of(const std::vector<std::vector<LaneRun>>& by_rank) {
    Brought result;
    std::vector<LaneRun> all;
    for (const std::vector<LaneRun>& subtrees : by_rank) {
      result.subtrees.push_back(int(subtrees.size()));
      all.insert(all.end(), subtrees.begin(), subtrees.end());
    }
    result.sums = additions_of(all);
    const auto& [additions, left] = result.sums;
    result.completes.assign(additions.size(), -1);
    for (int i = 0; i < int(left.size()); ++i) {
      const auto last = std::find_if(additions.rbegin(), additions.rend(),
                                     [&](const Addition& a) { return a.into == left[size_t(i)]; });
      if (last == additions.rend())
        result.alone.push_back(i);
      else
        result.completes[size_t(additions.rend() - last - 1)] = i;
    }
    return result;
  }
};

/// For each reduction of a step, or one that all are like.
std::vector<Brought> brought_to_reductions(const Plan& plan, const LaneLine& line) {
  std::vector<std::vector<LaneRun>> by_rank(static_cast<size_t>(line.ranks));
  std::vector<Brought> result;
  if (plan.owner.most_subtrees() == 1) {  // as if all lanes were reduced together
    for (int r = 0; r < line.ranks; ++r)
      by_rank[size_t(r)] = subtrees_of(lanes_of_rank(line.lanes, line.ranks, r));
    result.push_back(Brought::of(by_rank));
    return result;
  }
  for (int time = 0; time < plan.owner.times(); ++time) {
    const LaneRun run = lanes_at_time(line.lanes, line.ranks, time);
    for (int r = 0; r < line.ranks; ++r) {
      by_rank[size_t(r)].clear();
      if (r < run.count()) by_rank[size_t(r)].push_back({run.begin + r, run.begin + r + 1});
    }
    result.push_back(Brought::of(by_rank));
  }
  return result;
}

class DirectReduction : public ReductionRounds {
 public:
  DirectReduction(const Plan& plan, const LaneLine& line, int rank, kernels::Backend& backend,
                  kernels::Stream& sums)
      : rank_(rank),
        ranks_(line.ranks),
        brought_(brought_to_reductions(plan, line)),
        backend_(backend),
        sums_(sums) {}

  int count() const override { return 2; }
  int last_before_own() const override { return 0; }  // the sums of others are received in their place

  void add_messages(const PackedBucket& b, int round, int tag,
                    std::vector<Transfer>& messages) const override {
    round == 0 ? deal_slices(b, tag, messages) : send_to_owners(b, tag, messages);
  }

  void add_sums(const PackedBucket& b, int round) override {
    const Elements slice = slice_of(b.places->count(), rank_, ranks_);
    if (slice.count() == 0) return;
    round == 0 ? add_slices(b, slice) : keep_own(b, slice);
  }

 private:
  const Brought& brought(const PackedBucket& b) const { return brought_[size_t(b.time) % brought_.size()]; }
  int results(const PackedBucket& b) const { return int(brought(b).sums.left.size()); }

  /// Where the sum of this rank's slice over all ranks is: in f32, so with bf16 in other memory than the sums
  /// that it is made of.
  kernels::Matrix root(const PackedBucket& b, Elements slice, int result) const {
    if (b.dtype != DType::f32) return floats(b.root + result * slice.count(), slice.count());
    return list_[size_t(brought(b).sums.left[size_t(result)])];
  }
  kernels::Matrix of_root(const PackedBucket& b, Elements slice, int result, Elements part) const {
    return floats(root(b, slice, result).as<float>() + (part.begin - slice.begin), part.count());
  }

  /// Every rank brings its own slice of this rank's sums; the peers' come one after another, in the order of
  /// ranks.
  void deal_slices(const PackedBucket& b, int tag, std::vector<Transfer>& messages) const {
    const int64_t all = b.places->count(), mine = slice_of(all, rank_, ranks_).count();
    const std::vector<int>& subtrees = brought(b).subtrees;
    int64_t received = 0;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      const Elements slice = slice_of(all, peer, ranks_);
      for (int i = 0; i < subtrees[size_t(rank_)] && slice.count() > 0; ++i)
        messages.push_back(
            message(Transfer::send, peer, b.in(b.sums, i * all + slice.begin, slice.count()), tag));
      for (int i = 0; i < subtrees[size_t(peer)] && mine > 0; ++i, received += mine)
        messages.push_back(message(Transfer::receive, peer, b.in(b.received, received, mine), tag));
    }
  }

  /// Between two ranks result by result.
  void send_to_owners(const PackedBucket& b, int tag, std::vector<Transfer>& messages) const {
    const int64_t all = b.places->count();
    const Elements slice = slice_of(all, rank_, ranks_), part = b.places->part(rank_);
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank_) continue;
      const Elements give = intersection(slice, b.places->part(peer));
      const Elements take = intersection(slice_of(all, peer, ranks_), part);
      for (int i = 0; i < results(b); ++i) {
        if (give.count() > 0)
          messages.push_back(message(Transfer::send, peer, of_root(b, slice, i, give), tag));
        if (take.count() > 0)
          messages.push_back(message(Transfer::receive, peer,
                                     floats(b.own[size_t(i)] + (take.begin - part.begin), take.count()),
                                     tag));
      }
    }
  }

  void add_slices(const PackedBucket& b, Elements slice) {
    list_sums(b, slice);
    const Brought& brought = this->brought(b);
    for (size_t i = 0; i < brought.completes.size(); ++i) {
      const Addition& addition = brought.sums.additions[i];
      const kernels::Matrix &into = list_[size_t(addition.into)], &from = list_[size_t(addition.from)];
      const int result = brought.completes[i];
      add_lanes(backend_, sums_, b.dtype, into, from, result < 0 ? into : root(b, slice, result));
    }
    if (b.dtype == DType::f32) return;
    for (const int result : brought.alone)
      backend_.run(sums_, kernels::Copy{.src = list_[size_t(brought.sums.left[size_t(result)])],
                                        .dst = root(b, slice, result)});
  }

  void keep_own(const PackedBucket& b, Elements slice) {
    const Elements part = b.places->part(rank_), own = intersection(slice, part);
    for (int i = 0; i < results(b) && own.count() > 0; ++i)
      backend_.run(sums_,
                   kernels::Copy{.src = of_root(b, slice, i, own),
                                 .dst = floats(b.own[size_t(i)] + (own.begin - part.begin), own.count())});
  }

  /// Where this rank's slice of each subtree's sum is, in the order of lanes.
  void list_sums(const PackedBucket& b, Elements slice) {
    list_.clear();
    const std::vector<int>& subtrees = brought(b).subtrees;
    int64_t received = 0;
    for (int r = 0; r < ranks_; ++r)
      for (int i = 0; i < subtrees[size_t(r)]; ++i)
        list_.push_back(
            r == rank_ ? b.in(b.sums, i * b.places->count() + slice.begin, slice.count())
                       : b.in(b.received, std::exchange(received, received + slice.count()), slice.count()));
  }

  const int rank_, ranks_;
  const std::vector<Brought> brought_;
  std::vector<kernels::Matrix> list_;  // of the bucket under way
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
      direct_ = std::make_unique<DirectReduction>(layout.plan, ranks, rank, backend, sums);
  };
  for (const GroupPlan& group : layout.plan.groups)
    for (const Bucket& bucket : group.buckets)
      if (group.line == line) make(bucket.exchange);
}

}  // namespace trainctl::parallel::sharding
