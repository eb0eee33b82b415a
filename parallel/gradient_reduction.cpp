#include "parallel/gradient_reduction.h"

#include <algorithm>
#include <bit>

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
      use_complete_(memory.layout.uses.size(), false) {
  for (int g = 0; g < kGroups; ++g)
    groups_[size_t(g)].buckets = gradient_buckets(memory.group(g), memory.layout.options.bucket_elements);
  size_t buckets = 0;
  for (const Progress& progress : groups_) buckets += progress.buckets.size();
  queue_.reserve(buckets);
  for (int slot = 0; slot < memory.layout.plan.ring.buckets; ++slot)
    ring_.emplace_back(memory, slot, dp, backend, stream, *sums_);
}

void GradientReduction::merge_lane(int use, int lane) {
  int level = std::popcount(unsigned(lane));
  for (int merges = std::countr_one(unsigned(lane)); merges > 0; --merges, --level) {
    const kernels::Matrix sum = memory_.gradient(use, level - 1);
    const void* inputs[2] = {sum.data, memory_.gradient(use, level).data};
    backend_.tree_sum(stream_, inputs, sum.data, DType::f32, sum.count());
  }
}

void GradientReduction::reduce(int begin, int end) {
  for (int use = begin; use < end; ++use) {
    ENSURE(!use_complete_[size_t(use)], "use {} was reduced before", use);
    use_complete_[size_t(use)] = true;
  }
  queue_ready();
  go_on();
}

/// Appends every bucket whose gradients have become complete: in the same order on all ranks.
void GradientReduction::queue_ready() {
  for (int g = 0; g < kGroups; ++g) {
    const GroupPlan& group = memory_.group(g);
    Progress& progress = groups_[size_t(g)];
    while (progress.ready < group.chunks.size() && use_complete_[size_t(group.chunks[progress.ready].use)])
      ++progress.ready;
    for (;
         progress.queued < progress.buckets.size() && progress.buckets[progress.queued].end <= progress.ready;
         ++progress.queued)
      queue_.push_back({g, progress.buckets[progress.queued]});
  }
}

/// Goes on with the buckets under way, oldest first, and begins others while the ring has room. Never waits
/// for a peer: that one may wait for this rank's next pipeline message.
void GradientReduction::go_on() {
  for (size_t i = 0; i < ring_.size(); ++i) ring_[(next_ + i) % ring_.size()].poll();
  while (begun_ < queue_.size() && begin_next()) {
  }
}

/// False if the ring is full.
bool GradientReduction::begin_next() {
  const auto& [g, bucket] = queue_[begun_];
  if (dp_.size() == 1) {
    copy_own(g, bucket);
  } else {
    BucketReduction& oldest = ring_[next_];
    if (oldest.is_under_way()) return false;
    next_ = (next_ + 1) % ring_.size();
    oldest.begin(g, bucket);
  }
  ++begun_;
  return true;
}

/// Alone, a group has sums apart from its gradients only because they are added over tp then.
void GradientReduction::copy_own(int g, GradientBucket bucket) {
  if (!memory_.packs(g)) return;
  for (size_t i = bucket.begin; i < bucket.end; ++i) {
    const FlatChunk& c = memory_.group(g).chunks[i];
    const Box& box = c.where.global;
    backend_.copy(stream_, memory_.chunk_gradient(c),
                  kernels::matrix(memory_.summed(g, c.offset), DType::f32, box.rows(), box.cols()));
  }
}

void GradientReduction::finish() {
  const auto missing = std::find(use_complete_.begin(), use_complete_.end(), false);
  ENSURE(missing == use_complete_.end(), "use {} was not reduced", missing - use_complete_.begin());
  // All ranks finish their oldest bucket first, so that no two wait for each other.
  while (begun_ < queue_.size()) {
    ring_[next_].finish();
    go_on();
  }
  for (size_t i = 0; i < ring_.size(); ++i) ring_[(next_ + i) % ring_.size()].finish();
  sums_->record(*summed_);
  stream_.wait(*summed_);
  for (Progress& progress : groups_) {
    ENSURE(progress.queued == progress.buckets.size(), "{} of {} buckets were reduced", progress.queued,
           progress.buckets.size());
    progress.ready = progress.queued = 0;
  }
  queue_.clear();
  begun_ = 0;
  std::fill(use_complete_.begin(), use_complete_.end(), false);
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
  return memory_.chunk_gradient(memory_.group(g).chunks.front()).as<float>();
}

void GradientReduction::finish_tied() {
  const bool embedding = !memory_.group(tied_embedding).chunks.empty();
  const bool head = !memory_.group(tied_head).chunks.empty();
  const int mine = embedding ? tied_embedding : tied_head;
  const int64_t n = memory_.group(mine).chunks.empty() ? 0 : memory_.own(mine);
  if (embedding && head) {
    const void* inputs[2] = {tied_run(tied_embedding), tied_run(tied_head)};
    if (n > 0) backend_.tree_sum(stream_, inputs, tied_run(tied_embedding), DType::f32, n);
  } else if (tied_peer_ && n > 0) {
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
