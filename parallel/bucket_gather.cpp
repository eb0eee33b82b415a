#include "parallel/bucket_gather.h"

#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

BucketGather::BucketGather(const ShardedMemory& memory, int slot, DpGroup& dp, kernels::Backend& backend,
                           kernels::Stream& moves)
    : memory_(memory),
      slot_(slot),
      dp_(dp),
      backend_(backend),
      moves_(moves),
      rounds_(halving_rounds(dp.rank(), dp.size())) {
  begins_.reserve(size_t(dp.size()) + 1);
  next_.reserve(size_t(dp.size()) + 1);
}

void BucketGather::begin(int group, GradientBucket bucket, kernels::Event& ended) {
  ENSURE(!is_under_way(), "slot {} is in use", slot_);
  group_ = group;
  bucket_ = bucket;
  ended_ = &ended;
  element_ = size_of(memory_.group(group).dtype);
  tag_ = dp_.take_tag();
  places_of_parts(memory_.group(group), bucket, dp_.size(), begins_);
  copy_chunks(true);
  rounds_left_ = rounds_.size();
  start_round();
  // A transport on the device orders exchanges as they are started, which must be alike on all ranks.
  if (dp_.comm.waits_on_device()) finish();
}

void BucketGather::copy_chunks(bool own) {
  const GroupPlan& group = memory_.group(group_);
  next_ = begins_;
  for (size_t i = bucket_.begin; i < bucket_.end; ++i) {
    const FlatChunk& c = group.chunks[i];
    const Box& box = c.where.global;
    int64_t& at = next_[size_t(halving_place(c.owner, dp_.size()))];
    const kernels::Matrix in_buffer =
        kernels::matrix(reinterpret_cast<char*>(memory_.ring_bucket(slot_)) + size_t(at) * element_,
                        group.dtype, box.rows(), box.cols());
    at += box.count();
    if ((c.owner == dp_.rank()) != own) continue;
    const kernels::Matrix weight = memory_.chunk_weight(c);
    backend_.copy(moves_, own ? weight : in_buffer, own ? in_buffer : weight);
  }
}

void BucketGather::start_round() {
  const HalvingRound& round = rounds_[rounds_left_ - 1];
  const size_t has = bytes(round.keep), wants = bytes(round.give);
  Transfer transfers[2];
  size_t n = 0;
  if (has > 0) transfers[n++] = {Transfer::send, round.peer, place(round.keep.begin), has, tag_};
  if (wants > 0) transfers[n++] = {Transfer::receive, round.peer, place(round.give.begin), wants, tag_};
  if (n > 0) ticket_ = dp_.comm.exchange({transfers, n}, &moves_);
}

void BucketGather::end_round() {
  if (--rounds_left_ > 0) return start_round();
  copy_chunks(false);
  moves_.record(*ended_);
  group_ = -1;
}

void BucketGather::poll() {
  while (is_under_way() && dp_.comm.test(ticket_)) end_round();
}

void BucketGather::finish() {
  while (is_under_way()) {
    if (ticket_) dp_.comm.wait(ticket_, "gather parameters", moves_);
    end_round();
  }
}

}  // namespace trainctl::parallel::sharding
