#include "parallel/bucket_reduction.h"

#include <utility>

#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

BucketReduction::BucketReduction(const ShardedMemory& memory, int slot, DpGroup& dp,
                                 kernels::Backend& backend, kernels::Stream& stream, kernels::Stream& sums)
    : memory_(memory),
      slot_(slot),
      dp_(dp),
      backend_(backend),
      stream_(stream),
      sums_(sums),
      rounds_(halving_rounds(dp.rank(), dp.size())),
      complete_(backend.create_event()) {
  begins_.reserve(size_t(dp.size()) + 1);
  next_.reserve(size_t(dp.size()) + 1);
}

void BucketReduction::begin(int group, GradientBucket bucket) {
  ENSURE(!is_under_way(), "slot {} is in use", slot_);
  group_ = group;
  tag_ = dp_.take_tag();
  places_of_parts(memory_.group(group), bucket, dp_.size(), begins_);
  pack(bucket);
  round_ = 0;
  if (adds_in_transport())
    reduce_in_transport();
  else
    start_round();
  // A transport on the device orders exchanges as they are started, which must be alike on all ranks.
  if (dp_.comm.waits_on_device()) finish();
}

/// Into the order of the halving; each owner's chunks in the order of the list. On the stream of the additions,
/// which may still be busy with the bucket that had this buffer before: the backward pass does not wait for it.
void BucketReduction::pack(GradientBucket bucket) {
  const GroupPlan& group = memory_.group(group_);
  stream_.record(*complete_);
  sums_.wait(*complete_);
  next_ = begins_;
  own_begin_ = -1;
  for (size_t i = bucket.begin; i < bucket.end; ++i) {
    const FlatChunk& c = group.chunks[i];
    const Box& box = c.where.global;
    int64_t& at = next_[size_t(halving_place(c.owner, dp_.size()))];
    backend_.copy(sums_, memory_.chunk_gradient(c),
                  kernels::matrix(memory_.ring_bucket(slot_) + at, DType::f32, box.rows(), box.cols()));
    at += box.count();
    if (c.owner == dp_.rank() && own_begin_ < 0) own_begin_ = c.offset;
  }
}

bool BucketReduction::adds_in_transport() const {
  return sharding::adds_in_transport(group_, memory_.layout.options, dp_.size());
}

void BucketReduction::reduce_in_transport() {
  std::vector<Reduction> parts;
  for (int owner = 0; owner < dp_.size(); ++owner) {
    const int at = halving_place(owner, dp_.size());
    if (const int64_t count = elements({at, at + 1}); count > 0) parts.push_back({place(at), count, owner});
  }
  ticket_ = dp_.comm.reduce(parts, &sums_);
}

void BucketReduction::start_round() {
  const HalvingRound& round = rounds_[round_];
  const int64_t give = elements(round.give), keep = elements(round.keep);
  Transfer transfers[2];
  size_t n = 0;
  if (give > 0)
    transfers[n++] = {Transfer::send, round.peer, place(round.give.begin), size_t(give) * 4, tag_};
  if (keep > 0)
    transfers[n++] = {Transfer::receive, round.peer, memory_.ring_received(slot_), size_t(keep) * 4, tag_};
  if (n > 0) ticket_ = dp_.comm.exchange({transfers, n}, &sums_);
}

/// Adds what came in; in the last round, into the memory of the own sums.
void BucketReduction::end_round() {
  const HalvingRound& round = rounds_[round_++];
  const bool is_last = round_ == rounds_.size();
  if (const int64_t count = elements(round.keep); count > 0) {
    float* const mine = place(round.keep.begin);
    const void* inputs[2] = {mine, memory_.ring_received(slot_)};
    if (round.peer_is_first) std::swap(inputs[0], inputs[1]);
    backend_.tree_sum(sums_, inputs, is_last ? memory_.summed(group_, own_begin_) : mine, DType::f32, count);
  }
  if (is_last) {
    group_ = -1;
    return;
  }
  start_round();
}

void BucketReduction::poll() {
  while (is_under_way() && dp_.comm.test(ticket_)) {
    if (adds_in_transport()) return finish();
    end_round();
  }
}

void BucketReduction::finish() {
  if (!is_under_way()) return;
  const bool by_transport = adds_in_transport();
  while (is_under_way()) {
    if (ticket_) dp_.comm.wait(ticket_, "reduce gradients", sums_);
    if (!by_transport) {
      end_round();
      continue;
    }
    const int own = halving_place(dp_.rank(), dp_.size());
    if (const int64_t count = elements({own, own + 1}); count > 0)
      backend_.copy(sums_, kernels::matrix(place(own), DType::f32, 1, count),
                    kernels::matrix(memory_.summed(group_, own_begin_), DType::f32, 1, count));
    group_ = -1;
  }
}

}  // namespace trainctl::parallel::sharding
