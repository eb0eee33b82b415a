#include "parallel/gradient_reduction.h"

#include <algorithm>

#include "parallel/lane_sums.h"
#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

GradientReduction::GradientReduction(const ShardedMemory& memory, DpGroup& dp, Communicator& tp,
                                     Communicator* tied_peer, kernels::Backend& backend,
                                     kernels::Stream& stream)
    : memory_(memory),
      dp_(dp),
      tp_(tp),
      tied_peer_(tied_peer),
      backend_(backend),
      stream_(stream),
      sums_(backend.create_stream()),
      summed_(backend.create_event()),
      last_of_place_(memory.layout.uses.empty() ? 0 : size_t(memory.layout.uses.back().part) + 2),
      reductions_of_(memory.layout.uses.size(), 0) {
  for (int g = 0; g < kGroups; ++g)
    groups_[size_t(g)].buckets = buckets_of(memory.group(g), memory.layout.options.bucket_elements);
  for (int slot = 0; slot < memory.layout.ring.buckets; ++slot)
    ring_.emplace_back(memory, slot, dp, backend, stream, *sums_);
}

void GradientReduction::merge_lane(int use, int lane) {
  for (int level = memory_.level_of_lane(lane); level > 0 && level >= memory_.level_of_lane(lane + 1);
       --level) {
    const kernels::Matrix left = memory_.gradient(use, level - 1);
    add_lanes(backend_, stream_, memory_.layout.options.reduction_dtype, left, memory_.gradient(use, level),
              left);
  }
}

void GradientReduction::reduce(int begin, int end) {
  const int lane = reductions_of_[size_t(begin)];
  ENSURE(lane < memory_.layout.reductions(), "use {} was reduced before", begin);
  for (int use = begin; use < end; ++use) {
    ENSURE(reductions_of_[size_t(use)] == lane, "use {} is not reduced with use {}", use, begin);
    ++reductions_of_[size_t(use)];
  }
  if (memory_.layout.reduces_lanes())
    queue_uses(begin, end, lane);
  else
    queue_ready();
  go_on();
}

/// Appends every bucket whose gradients have become complete: in the same order on all ranks.
void GradientReduction::queue_ready() {
  for (int g = 0; g < kGroups; ++g) {
    const GroupPlan& group = memory_.group(g);
    Progress& progress = groups_[size_t(g)];
    while (progress.ready < group.chunks.size() &&
           reductions_of_[size_t(group.chunks[progress.ready].use)] > 0)
      ++progress.ready;
    for (;
         progress.queued < progress.buckets.size() && progress.buckets[progress.queued].end <= progress.ready;
         ++progress.queued)
      queue_.push_back({g, progress.buckets[progress.queued]});
  }
}

/// Appends the buckets of these uses, which are whole parts of the model.
void GradientReduction::queue_uses(int begin, int end, int lane) {
  for (int g = 0; g < kGroups; ++g) {
    const std::vector<FlatChunk>& chunks = memory_.group(g).chunks;
    const std::vector<Bucket>& buckets = groups_[size_t(g)].buckets;
    // The list begins with the last use.
    auto bucket = std::partition_point(buckets.begin(), buckets.end(),
                                       [&](const Bucket& b) { return chunks[b.begin].use >= end; });
    for (; bucket != buckets.end() && chunks[bucket->end - 1].use >= begin; ++bucket)
      queue_.push_back({g, *bucket, lane});
  }
  for (int use = begin; use < end; ++use) last_of_place_[place_of(use)] = {queued_before_ + queue_.size(), 0};
}

size_t GradientReduction::place_of(int use) const {
  const int part = memory_.layout.uses[size_t(use)].part;
  return size_t(memory_.layout.options.shares_gradients ? part % 2 : part);
}

/// Waits for peers, which cannot end in a circle. The dp ranks run one program, so that all of them claim at
/// the same place of it and need the same buckets to have begun there. A rank leaves the claim when the older
/// ones have ended, that is, when it has sent all that its peers need of them. So nobody waits here for a
/// peer that is further on in the program, and a peer that is not as far does not wait for this rank's later
/// messages.
void GradientReduction::claim(int begin, int end) {
  if (!memory_.layout.reduces_lanes()) return;
  for (int use = begin; use < end; ++use) {
    const LastBucket& last = last_of_place_[place_of(use)];
    while (queued_before_ < last.number) {
      finish_oldest();
      go_on();
    }
    // Buckets are copied in order: when this one is, or a later one in its slot, the whole part is.
    if (last.number > 0) stream_.wait(ring_[last.slot].reduction.copied());
  }
}

/// Goes on with the buckets under way, oldest first, and begins others while the ring has room. Never waits
/// for a peer: that one may wait for this rank's next pipeline message.
void GradientReduction::go_on() {
  // Where lanes are added, the sums of a lane must not take the place of an earlier one's.
  for (size_t i = 0; i < under_way_; ++i)
    slot_of(i).reduction.poll(i == 0 || !memory_.layout.reduces_lanes());
  end_complete();
  while (!queue_.empty() && begin_next()) end_complete();
}

void GradientReduction::end_complete() {
  while (under_way_ > 0 && !slot_of(0).reduction.is_under_way()) end_oldest();
}

/// False if the ring is full.
bool GradientReduction::begin_next() {
  const Queued next = queue_.front();
  if (dp_.size() == 1) {
    copy_own(next.group, next.bucket);
  } else {
    if (under_way_ == ring_.size()) return false;
    const size_t slot = (oldest_ + under_way_++) % ring_.size();
    ring_[slot].queued = next;
    ring_[slot].reduction.begin(next.group, next.bucket, memory_.own_level_of_lane(next.lane));
    for (LastBucket& last : last_of_place_)
      if (last.number == queued_before_ + 1) last.slot = slot;
  }
  queue_.pop_front();
  ++queued_before_;
  return true;
}

void GradientReduction::finish_oldest() {
  ENSURE(under_way_ > 0);
  slot_of(0).reduction.finish();
  end_oldest();
}

/// Adds the own sums of the bucket's lane to those of the lanes before, with which they form a subtree.
/// Buckets end in the order in which they were begun, so the lanes of a chunk are added in order.
void GradientReduction::end_oldest() {
  const auto& [group, bucket, lane] = slot_of(0).queued;
  oldest_ = (oldest_ + 1) % ring_.size();
  --under_way_;
  if (!memory_.layout.reduces_lanes()) return;
  const auto own = std::find_if(memory_.group(group).chunks.begin() + int64_t(bucket.begin),
                                memory_.group(group).chunks.begin() + int64_t(bucket.end),
                                [&](const FlatChunk& c) { return c.owner == dp_.rank(); });
  int64_t count = 0;
  for (size_t i = bucket.begin; i < bucket.end; ++i)
    if (memory_.group(group).chunks[i].owner == dp_.rank())
      count += memory_.group(group).chunks[i].where.global.count();
  if (count == 0) return;
  for (int level = memory_.own_level_of_lane(lane); level > 0 && level >= memory_.own_level_of_lane(lane + 1);
       --level) {
    const auto sum = [&](int of) {
      return kernels::matrix(memory_.summed(group, own->offset, of), DType::f32, 1, count);
    };
    add_lanes(backend_, *sums_, memory_.layout.options.reduction_dtype, sum(level - 1), sum(level),
              sum(level - 1));
  }
}

/// Alone, a group has sums apart from its gradients only because they are added over tp then.
void GradientReduction::copy_own(int g, Bucket bucket) {
  if (!memory_.packs(g)) return;
  for (size_t i = bucket.begin; i < bucket.end; ++i) {
    const FlatChunk& c = memory_.group(g).chunks[i];
    const Box& box = c.where.global;
    backend_.copy(stream_, memory_.chunk_gradient(c, 0),
                  kernels::matrix(memory_.summed(g, c.offset), DType::f32, box.rows(), box.cols()));
  }
}

void GradientReduction::finish() {
  for (size_t use = 0; use < reductions_of_.size(); ++use)
    ENSURE(reductions_of_[use] == memory_.layout.reductions(), "use {} was reduced {} of {} times", use,
           reductions_of_[use], memory_.layout.reductions());
  // All ranks finish their oldest bucket first, so that no two wait for each other.
  for (go_on(); under_way_ > 0; go_on()) finish_oldest();
  ENSURE(queue_.empty());
  sums_->record(*summed_);
  stream_.wait(*summed_);
  for (Progress& progress : groups_) progress.ready = progress.queued = 0;
  queued_before_ = 0;
  std::fill(last_of_place_.begin(), last_of_place_.end(), LastBucket{});
  std::fill(reductions_of_.begin(), reductions_of_.end(), 0);
  finish_partial();
  finish_tied();
  const Layout& layout = memory_.layout;
  if (layout.options.zero_stage > 0 || dp_.size() == 1) return;
  for (int g = 0; g < kGroups; ++g)
    if (!memory_.group(g).chunks.empty() && owns_state(layout.plan, g))
      gather_flat(g, memory_.summed(g, 0), DType::f32);
}

void GradientReduction::finish_partial() {
  constexpr int g = replicated_partial;
  if (tp_.size() == 1 || memory_.group(g).chunks.empty() || memory_.own(g) == 0) return;
  all_reduce(tp_, backend_, stream_, memory_.summed(g, memory_.own_begin(g)), memory_.tp_scratch(),
             DType::f32, memory_.own(g));
}

/// Own run of a tied group's summed gradient (a tied use is cut by rows, so it is contiguous in its place).
float* GradientReduction::tied_run(int g) const {
  if (memory_.packs(g)) return memory_.summed(g, memory_.own_begin(g));
  return memory_.chunk_gradient(memory_.group(g).chunks.front(), 0).as<float>();
}

void GradientReduction::finish_tied() {
  const bool embedding = !memory_.group(tied_embedding).chunks.empty();
  const bool head = !memory_.group(tied_head).chunks.empty();
  const int mine = embedding ? tied_embedding : tied_head;
  const int64_t n = memory_.group(mine).chunks.empty() ? 0 : memory_.own(mine);
  if (n == 0) return;
  if (embedding && head) {
    const void* inputs[2] = {tied_run(tied_embedding), tied_run(tied_head)};
    backend_.tree_sum(stream_, inputs, tied_run(tied_embedding), DType::f32, n);
  } else if (tied_peer_) {
    const int peer = 1 - tied_peer_->rank();
    float* other = memory_.tied_received();
    const Transfer transfers[2] = {{Transfer::send, peer, tied_run(mine), size_t(n) * 4},
                                   {Transfer::receive, peer, other, size_t(n) * 4}};
    tied_peer_->exchange_and_wait(transfers, "add the tied embedding's gradients", stream_);
    const void* inputs[2] = {embedding ? tied_run(mine) : other, embedding ? other : tied_run(mine)};
    backend_.tree_sum(stream_, inputs, tied_run(mine), DType::f32, n);
  }
}

void GradientReduction::gather_flat(int g, void* flat, DType dtype) {
  std::vector<size_t> bytes;
  for (int r = 0; r < dp_.size(); ++r) bytes.push_back(size_t(memory_.group(g).own(r)) * size_of(dtype));
  char* own = static_cast<char*>(flat) + memory_.own_begin(g) * int64_t(size_of(dtype));
  all_gather_v(dp_.comm, stream_, own, flat, bytes);
}

}  // namespace trainctl::parallel::sharding
