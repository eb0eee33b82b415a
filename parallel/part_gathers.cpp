#include "parallel/part_gathers.h"

#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

PartGathers::PartGathers(const ShardedMemory& memory, LaneGroups& lines, kernels::Backend& backend,
                         kernels::Stream& stream)
    : layout_(memory.layout),
      stream_(stream),
      moves_(backend.create_stream_before(kGatherPriority)),
      place_free_(backend.create_event()) {
  list_parts(memory.layout, backend);
  for (int slot = 0; slot < layout_.plan.gather_ring.buckets; ++slot)
    ring_.emplace_back(memory, slot, lines, backend, *moves_);
}

void PartGathers::list_parts(const Layout& layout, kernels::Backend& backend) {
  for (int use = 0; use < int(layout.uses.size()); ++use) {
    const auto part = size_t(layout.uses[size_t(use)].part);
    if (part == parts_.size()) parts_.push_back({use, use, {}, backend.create_event()});
    ENSURE(part + 1 == parts_.size(), "the parts of uses are not in order");
    parts_.back().end = use + 1;
  }
  for (int g = 0; g < layout.groups(); ++g) {
    const GroupPlan& group = layout.plan.groups[size_t(g)];
    if (!gathers_params(layout, g)) continue;
    for (const Bucket& bucket : group.buckets)
      parts_[size_t(group.chunks[bucket.begin].part)].buckets.push_back({g, bucket});
  }
}

PartGathers::Part& PartGathers::part_of(int begin, int end) {
  Part& part = parts_[size_t(layout_.uses[size_t(begin)].part)];
  ENSURE(part.begin == begin && part.end == end, "uses {} to {} are not a part", begin, end);
  return part;
}

void PartGathers::gather(int begin, int end) {
  Part& part = part_of(begin, end);
  for (const Gathering& other : under_way_)
    ENSURE(!layout_.options.shares_weights || (&part - other.part) % 2 != 0,
           "use {} is gathered into the place of use {}, which was not awaited", begin, other.part->begin);
  stream_.record(*place_free_);
  moves_->wait(*place_free_);
  under_way_.push_back({&part});
  go_on();
}

void PartGathers::go_on() {
  for (size_t i = 0; i < busy_; ++i) slot_of(i).poll();
  end_complete();
  while (begin_next()) end_complete();
}

/// Buckets begin in the order of the program, on all ranks alike. False if the ring is full or none is left.
bool PartGathers::begin_next() {
  if (busy_ == ring_.size()) return false;
  for (Gathering& g : under_way_) {
    if (g.begun == g.part->buckets.size()) continue;
    const auto& [group, chunks] = g.part->buckets[g.begun++];
    slot_of(busy_++).begin(group, chunks, *g.part->here);
    return true;
  }
  return false;
}

void PartGathers::end_complete() {
  while (busy_ > 0 && !slot_of(0).is_under_way()) {
    for (Gathering& g : under_way_) {
      if (g.ended == g.part->buckets.size()) continue;
      ++g.ended;
      break;
    }
    oldest_ = (oldest_ + 1) % ring_.size();
    --busy_;
  }
}

/// Waits for peers, which cannot end in a circle. The dp ranks run one program, so that all of them gather
/// and await the same parts at the same places of it; a rank that has left an await has received and sent all
/// that its peers need of it there. So nobody waits here for a peer that is further on in the program.
void PartGathers::finish_first() {
  Gathering& first = under_way_.front();
  while (first.ended < first.part->buckets.size()) {
    slot_of(0).finish();
    end_complete();
    go_on();
  }
  if (!first.part->buckets.empty()) stream_.wait(*first.part->here);
  under_way_.pop_front();
}

void PartGathers::await(int begin, int end) {
  const Part& part = part_of(begin, end);
  ENSURE(!under_way_.empty() && under_way_.front().part == &part, "use {} was not gathered, or not next",
         begin);
  finish_first();
  go_on();
}

void PartGathers::finish() {
  while (!under_way_.empty()) finish_first();
}

}  // namespace trainctl::parallel::sharding
