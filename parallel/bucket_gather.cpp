#include "parallel/bucket_gather.h"

#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {
namespace {

constexpr const char* kWhat = "gather parameters";

}  // namespace

BucketGather::BucketGather(const ShardedMemory& memory, int slot, DpGroup& dp, kernels::Backend& backend,
                           kernels::Stream& moves)
    : memory_(memory),
      slot_(slot),
      dp_(dp),
      backend_(backend),
      moves_(moves),
      rounds_(gather_round_count(dp.size())),
      places_(dp.size()) {}

void BucketGather::begin(int group, Bucket bucket, kernels::Event& ended) {
  ENSURE(!is_under_way(), "slot {} is in use", slot_);
  group_ = group;
  ended_ = &ended;
  element_ = size_of(memory_.group(group).dtype);
  tag_ = dp_.take_tag();
  places_.lay_out(memory_.group(group), bucket);
  copy_in();
  round_ = 0;
  start_round();
  // A transport on the device orders exchanges as they are started, which must be alike on all ranks.
  if (dp_.comm.waits_on_device()) finish();
}

kernels::Matrix BucketGather::in_buffer(const FlatChunk& c, int64_t at) const {
  return kernels::matrix(buffer() + size_t(at) * element_, memory_.group(group_).dtype,
                         c.where.global.rows(), c.where.global.cols());
}

void BucketGather::copy_in() {
  places_.for_each_chunk([&](const FlatChunk& c, int64_t at) {
    if (c.owner == dp_.rank()) backend_.copy(moves_, memory_.own_weight(group_, c), in_buffer(c, at));
  });
}

void BucketGather::copy_out() {
  places_.for_each_chunk([&](const FlatChunk& c, int64_t at) {
    if (c.owner != dp_.rank() || memory_.layout.shards_weights())
      backend_.copy(moves_, in_buffer(c, at), memory_.chunk_weight(c));
  });
}

void BucketGather::start_round() {
  messages_.clear();
  transfers_.clear();
  add_gather_messages(places_, dp_.rank(), dp_.size(), round_, messages_);
  for (const auto& [is_send, peer, elements] : messages_)
    transfers_.push_back({is_send ? Transfer::send : Transfer::receive, peer,
                          buffer() + size_t(elements.begin) * element_, size_t(elements.count()) * element_,
                          tag_});
  if (!transfers_.empty()) ticket_ = dp_.comm.exchange(transfers_, &moves_);
  ticket_.name(kWhat);
}

void BucketGather::end_round() {
  if (++round_ < rounds_) return start_round();
  copy_out();
  moves_.record(*ended_);
  group_ = -1;
}

void BucketGather::poll() {
  while (is_under_way() && dp_.comm.test(ticket_)) finish_exchange();
}

void BucketGather::finish() {
  while (is_under_way()) finish_exchange();
}

/// Of the exchange that was started last; waits for it.
void BucketGather::finish_exchange() {
  if (ticket_) dp_.comm.wait(ticket_, kWhat, moves_);
  end_round();
}

}  // namespace trainctl::parallel::sharding
