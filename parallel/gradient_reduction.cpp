#include "parallel/gradient_reduction.h"

#include <algorithm>

#include "parallel/lane_sums.h"
#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

GradientReduction::GradientReduction(const ShardedMemory& memory, LaneGroups& lines, const AxisGroups& axes,
                                     kernels::Backend& backend, kernels::Stream& stream)
    : memory_(memory),
      lines_(lines),
      axes_(axes),
      backend_(backend),
      stream_(stream),
      summed_(backend.create_event()),
      groups_(size_t(memory.groups())),
      last_of_place_(memory.layout.uses.empty() ? 0 : size_t(memory.layout.uses.back().part) + 2),
      reductions_of_(memory.layout.uses.size(), 0) {
  // The sums of a chunk's reductions go to one place, in order, where there are several.
  const bool exchanges =
      std::any_of(lines.begin(), lines.end(), [](const LaneGroup& l) { return l.size() > 1; });
  const int slots = exchanges ? memory.layout.ring.buckets : 0;
  for (int i = 0; i < (memory.layout.reduces_lanes() ? std::min(slots, 1) : slots); ++i)
    sums_.push_back(backend.create_stream_before(kReductionPriority));
  for (int slot = 0; slot < slots; ++slot)
    ring_.emplace_back(memory, slot, lines, backend, stream, *sums_[size_t(slot) % sums_.size()]);
}

void GradientReduction::merge_lane(int use, int lane) {
  const int g = memory_.group_of(use);
  for (const auto& [into, from] : memory_.levels(g).after[memory_.lane_before_reduction(g, lane)]) {
    const kernels::Matrix left = memory_.gradient(use, into);
    add_lanes(backend_, stream_, memory_.layout.options.reduction_dtype, left, memory_.gradient(use, from),
              left);
  }
}

void GradientReduction::reduce(int begin, int end) {
  const int number = reductions_of_[size_t(begin)];
  ENSURE(number < memory_.layout.reductions(), "use {} was reduced before", begin);
  for (int use = begin; use < end; ++use) {
    ENSURE(reductions_of_[size_t(use)] == number, "use {} is not reduced with use {}", use, begin);
    ++reductions_of_[size_t(use)];
  }
  if (memory_.layout.reduces_lanes())
    queue_uses(begin, end, number);
  else
    queue_ready();
  go_on();
}

/// Appends every bucket whose gradients have become complete: in the same order on all ranks.
void GradientReduction::queue_ready() {
  for (int g = 0; g < memory_.groups(); ++g) {
    const GroupPlan& group = memory_.group(g);
    Progress& progress = groups_[size_t(g)];
    while (progress.ready < group.chunks.size() &&
           reductions_of_[size_t(group.chunks[progress.ready].use)] > 0)
      ++progress.ready;
    for (; progress.queued < group.buckets.size() && group.buckets[progress.queued].end <= progress.ready;
         ++progress.queued)
      queue_.push_back({g, group.buckets[progress.queued]});
  }
}

/// Appends the buckets of these uses, which are whole parts of the model.
void GradientReduction::queue_uses(int begin, int end, int number) {
  for (int g = 0; g < memory_.groups(); ++g) {
    const std::vector<FlatChunk>& chunks = memory_.group(g).chunks;
    const std::vector<Bucket>& buckets = memory_.group(g).buckets;
    // The list begins with the last use.
    auto bucket = std::partition_point(buckets.begin(), buckets.end(),
                                       [&](const Bucket& b) { return chunks[b.begin].use >= end; });
    for (; bucket != buckets.end() && chunks[bucket->end - 1].use >= begin; ++bucket)
      queue_.push_back({g, *bucket, number});
  }
  for (int use = begin; use < end; ++use) last_of_place_[place_of(use)] = {queued_before_ + queue_.size(), 0};
}

size_t GradientReduction::place_of(int use) const {
  const int part = memory_.layout.uses[size_t(use)].part;
  return size_t(memory_.layout.options.shares_gradients ? part % 2 : part);
}

/// Waits for peers, which cannot end in a circle. The dp ranks run one program, so that all of them claim
/// at the same place of it and need the same buckets to have begun there, in the same order, of whichever
/// lines. A rank leaves the claim when the older ones have ended, that is, when it has sent all that its
/// peers need of them. So nobody waits here for a peer that is further on in the program, and a peer that
/// is not as far does not wait for this rank's later messages.
void GradientReduction::claim(int begin, int end) {
  if (!memory_.layout.reduces_lanes()) return;
  for (int use = begin; use < end; ++use) {
    const LastBucket& last = last_of_place_[place_of(use)];
    while (queued_before_ < last.number) {
      finish_oldest();
      go_on();
    }
    // Buckets are copied in order: when this one is, or a later one in its slot, the whole part is.
    if (last.number > 0 && !ring_.empty()) stream_.wait(ring_[last.slot].reduction.copied());
  }
}

/// Goes on with the buckets under way, oldest first, and begins others while the ring has room. Never waits
/// for a peer: that one may wait for this rank's next pipeline message.
void GradientReduction::go_on() {
  for (size_t i = 0; i < under_way_; ++i) slot_of(i).reduction.poll(may_write(i));
  end_complete();
  while (!queue_.empty() && begin_next()) end_complete();
}

/// From ZeRO-2 on, the sums of a reduction must not take the place of an earlier one's: those of the same
/// chunks come first.
bool GradientReduction::may_write(size_t i) {
  const Queued& queued = slot_of(i).queued;
  for (size_t older = 0; older < i; ++older) {
    const Queued& other = slot_of(older).queued;
    if (other.group == queued.group && other.bucket.begin == queued.bucket.begin) return false;
  }
  return true;
}

void GradientReduction::end_complete() {
  while (under_way_ > 0 && !slot_of(0).reduction.is_under_way()) end_oldest();
}

/// False if the ring is full.
bool GradientReduction::begin_next() {
  const Queued next = queue_.front();
  if (line_of(next.group).size() == 1) {
    copy_own(next);
  } else {
    if (under_way_ == ring_.size()) return false;
    last_slot_ = (oldest_ + under_way_++) % ring_.size();
    ring_[last_slot_].queued = next;
    ring_[last_slot_].reduction.begin(next.group, next.bucket, next.number);
  }
  for (LastBucket& last : last_of_place_)
    if (last.number == queued_before_ + 1) last.slot = last_slot_;
  queue_.pop_front();
  ++queued_before_;
  return true;
}

void GradientReduction::finish_oldest() {
  ENSURE(under_way_ > 0);
  slot_of(0).reduction.finish();
  end_oldest();
}

/// Buckets end in the order in which they were begun, so the reductions of a chunk are added in order.
void GradientReduction::end_oldest() {
  const Queued& queued = slot_of(0).queued;
  oldest_ = (oldest_ + 1) % ring_.size();
  --under_way_;
  add_to_earlier(queued, *sums_.front());
}

/// From ZeRO-2 on: adds the own sums of the bucket to those of the reductions before, with which they form
/// subtrees.
void GradientReduction::add_to_earlier(const Queued& queued, kernels::Stream& stream) {
  const auto& [group, bucket, number] = queued;
  if (!memory_.layout.reduces_lanes()) return;
  const int rank = line_of(group).rank();
  const auto own = std::find_if(memory_.group(group).chunks.begin() + int64_t(bucket.begin),
                                memory_.group(group).chunks.begin() + int64_t(bucket.end),
                                [rank](const FlatChunk& c) { return c.owner == rank; });
  int64_t count = 0;
  for (size_t i = bucket.begin; i < bucket.end; ++i)
    if (memory_.group(group).chunks[i].owner == rank)
      count += memory_.group(group).chunks[i].where.global.count();
  if (count == 0) return;
  const OwnerLevels& levels = memory_.layout.plan.owner;
  const auto sum = [&](int level) {
    return kernels::matrix(memory_.summed(group, own->offset, level), DType::f32, 1, count);
  };
  for (int i = 0; i < levels.subtrees(number); ++i)
    for (const auto& [into, from] : levels.after(number, i))
      add_lanes(backend_, stream, memory_.layout.options.reduction_dtype, sum(into), sum(from), sum(into));
}

/// Alone, a group has sums apart from its gradients where they are added along another axis then, or to
/// those of later times. All in order on the stream of the gradients.
void GradientReduction::copy_own(const Queued& queued) {
  const auto& [g, bucket, number] = queued;
  if (memory_.group(g).in_place) return;
  for (size_t i = bucket.begin; i < bucket.end; ++i) {
    const FlatChunk& c = memory_.group(g).chunks[i];
    const Box& box = c.where.global;
    backend_.run(stream_,
                 kernels::Copy{.src = memory_.chunk_gradient(c, 0),
                               .dst = kernels::matrix(
                                   memory_.summed(g, c.offset, memory_.layout.plan.owner.level(number, 0)),
                                   DType::f32, box.rows(), box.cols())});
  }
  add_to_earlier(queued, stream_);
}

void GradientReduction::finish() {
  for (size_t use = 0; use < reductions_of_.size(); ++use)
    ENSURE(reductions_of_[use] == memory_.layout.reductions(), "use {} was reduced {} of {} times", use,
           reductions_of_[use], memory_.layout.reductions());
  // All ranks finish their oldest bucket first, so that no two wait for each other.
  for (go_on(); under_way_ > 0; go_on()) finish_oldest();
  ENSURE(queue_.empty());
  for (const auto& sums : sums_) {
    sums->record(*summed_);
    stream_.wait(*summed_);
  }
  for (Progress& progress : groups_) progress.ready = progress.queued = 0;
  queued_before_ = 0;
  std::fill(last_of_place_.begin(), last_of_place_.end(), LastBucket{});
  std::fill(reductions_of_.begin(), reductions_of_.end(), 0);
  add_uses();
  for (int g = 0; g < memory_.groups(); ++g) {
    if (!owns_state(memory_.layout.plan, g)) continue;
    if (memory_.own(g) > 0) add_along_axes(g);
    if (memory_.layout.options.zero_stage == 0) gather_sums(g);
  }
}

/// The sums of later uses of a parameter that are here go to those of the first one, from the last one on: so
/// do those of other stages, whichever stage has which use.
void GradientReduction::add_uses() {
  for (int g = memory_.groups(); g-- > 0;) {
    const int first = memory_.group(g).state_of;
    if (first == g || memory_.own(g) == 0) continue;
    int before = g - 1;
    while (memory_.group(before).state_of != first) --before;
    float* const sums = memory_.own_sums(before);
    const void* inputs[2] = {sums, memory_.own_sums(g)};
    backend_.run(stream_, kernels::TreeSum{.inputs = inputs, .out = sums, .dtype = DType::f32,
                                           .count = memory_.own(g)});
  }
}

/// Adds the own sums of all ranks of each further axis, in the order of the ranks.
void GradientReduction::add_along_axes(int g) {
  float* const sums = memory_.own_sums(g);
  const int64_t n = memory_.own(g);
  for (const AxisSet axis : memory_.group(g).sums) {
    Communicator& group = *axes_.find(axis);
    if (group.size() > 2) {
      all_reduce(group, backend_, stream_, sums, memory_.received_sums(g), DType::f32, n);
      continue;
    }
    const int peer = 1 - group.rank();
    float* const other = static_cast<float*>(memory_.received_sums(g));
    const Transfer transfers[2] = {{Transfer::send, peer, sums, size_t(n) * 4},
                                   {Transfer::receive, peer, other, size_t(n) * 4}};
    group.exchange_and_wait(transfers, "add the sums of gradients", stream_);
    const void* inputs[2] = {peer == 1 ? sums : other, peer == 1 ? other : sums};
    backend_.run(stream_, kernels::TreeSum{.inputs = inputs, .out = sums, .dtype = DType::f32, .count = n});
  }
}

/// ZeRO-0: every rank has all sums.
void GradientReduction::gather_sums(int g) {
  LaneGroup& line = line_of(g);
  if (line.size() == 1) return;
  std::vector<size_t> bytes;
  for (int r = 0; r < line.size(); ++r) bytes.push_back(size_t(memory_.group(g).own(r)) * 4);
  all_gather_v(line.comm(), stream_, memory_.summed(g, memory_.own_begin(g)), memory_.summed(g, 0), bytes);
}

}  // namespace trainctl::parallel::sharding
