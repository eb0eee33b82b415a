#include "parallel/bucket_gather.h"

#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {
namespace {

constexpr const char* kGatherText = "gather parameters";

}  // namespace

BucketGather::BucketGather(const ShardedMemory& memory, int slot, LaneGroups& lines,
                           kernels::Backend& backend, kernels::Stream& moves)
    : memory_(memory), slot_(slot), lines_(lines), backend_(backend), moves_(moves) {
  for (const LaneGroup& line : lines) places_of_lines_.emplace_back(line.size());
}

void BucketGather::begin(int group, Bucket bucket, kernels::Event& ended) {
  ENSURE(!is_under_way(), "slot {} is in use", slot_);
  group_ = group;
  ended_ = &ended;
  const auto of = size_t(memory_.group(group).line);
  line_ = &lines_[of], places_ = &places_of_lines_[of];
  element_ = size_of(memory_.group(group).key.dtype);
  tag_ = line_->take_tag();
  places_->lay_out(memory_.group(group), bucket);
  copy_in();
  round_ = 0;
  start_round();
  // A transport on the device orders exchanges as they are started, which must be alike on all ranks.
  if (line_->waits_on_device()) finish();
}

kernels::Matrix BucketGather::in_buffer(const FlatChunk& c, int64_t at) const {
  return kernels::matrix(buffer() + size_t(at) * element_, memory_.group(group_).key.dtype,
                         c.where.global.rows(), c.where.global.cols());
}

void BucketGather::copy_in() {
  places_->for_each_chunk([&](const FlatChunk& c, int64_t at) {
    if (c.owner == line_->rank())
      backend_.run(moves_, kernels::Copy{.src = memory_.own_weight(group_, c), .dst = in_buffer(c, at)});
  });
}

void BucketGather::copy_out() {
  places_->for_each_chunk([&](const FlatChunk& c, int64_t at) {
    if (c.owner != line_->rank() || memory_.layout.shards_weights(group_))
      backend_.run(moves_, kernels::Copy{.src = in_buffer(c, at), .dst = memory_.chunk_weight(c)});
  });
}

void BucketGather::start_round() {
  messages_.clear();
  transfers_.clear();
  add_gather_messages(*places_, line_->rank(), line_->size(), round_, messages_);
  for (const auto& [is_send, peer, elements] : messages_)
    transfers_.push_back({is_send ? Transfer::send : Transfer::receive, peer,
                          buffer() + size_t(elements.begin) * element_, size_t(elements.count()) * element_,
                          tag_});
  if (!transfers_.empty()) ticket_ = line_->comm().exchange(transfers_, &moves_);
  ticket_.name(kGatherText);
}

void BucketGather::end_round() {
  if (++round_ < gather_round_count(places_->exchange(), line_->size())) return start_round();
  copy_out();
  moves_.record(*ended_);
  group_ = -1;
}

void BucketGather::poll() {
  while (is_under_way() && line_->comm().test(ticket_)) finish_exchange();
}

void BucketGather::finish() {
  while (is_under_way()) finish_exchange();
}

/// Of the exchange that was started last; waits for it.
void BucketGather::finish_exchange() {
  if (ticket_) line_->comm().wait(ticket_, kGatherText, moves_);
  end_round();
}

}  // namespace trainctl::parallel::sharding
