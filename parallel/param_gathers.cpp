#include "parallel/param_gathers.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

std::vector<GatherBucket> gather_buckets(const Layout& layout, const std::vector<int>& groups) {
  std::vector<GatherBucket> buckets;
  for (const int g : groups) {
    const GroupPlan& group = layout.plan.groups[size_t(g)];
    // The list of chunks begins with the last layer.
    for (auto chunks = group.buckets.rbegin(); chunks != group.buckets.rend(); ++chunks)
      buckets.push_back({g, *chunks, group.chunks[chunks->end - 1].use});
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const GatherBucket& a, const GatherBucket& b) { return a.first_use < b.first_use; });
  return buckets;
}

ParamGathers::ParamGathers(const ShardedMemory& memory, LaneGroups& lines, kernels::Backend& backend,
                           kernels::Stream& stream)
    : waits_on_device_(std::any_of(lines.begin(), lines.end(),
                                   [](const LaneGroup& line) { return line.waits_on_device(); })),
      stream_(stream),
      changed_(backend.create_event()) {
  std::vector<int> groups;
  for (int g = 0; g < memory.layout.groups(); ++g)
    if (gathers_params(memory.layout, g)) groups.push_back(g);
  for (const GatherBucket& bucket : gather_buckets(memory.layout, groups))
    gathers_.push_back({bucket, backend.create_event()});
  if (!gathers_.empty()) moves_ = backend.create_stream_before(kGatherPriority);
  if (!gathers_.empty())
    for (int slot = 0; slot < memory.layout.ring.buckets; ++slot)
      ring_.emplace_back(memory, slot, lines, backend, *moves_);
  allowed_ = begun_ = ended_ = awaited_ = gathers_.size();
}

void ParamGathers::weights_changed() {
  if (moves_) {
    stream_.record(*changed_);
    moves_->wait(*changed_);
  }
  allowed_ = begun_ = ended_ = awaited_ = 0;
}

void ParamGathers::gather(int begin, int end) {
  for (; allowed_ < gathers_.size() && gathers_[allowed_].bucket.first_use < end; ++allowed_) {
    const int first_use = gathers_[allowed_].bucket.first_use;
    ENSURE(first_use >= begin, "use {} was not gathered before use {}", first_use, begin);
  }
  go_on();
}

/// A bucket has its buffer until it has ended. Where the host runs ahead of the device, that is at once, and
/// the forward pass must not queue behind all of them: there until it is awaited.
bool ParamGathers::may_begin() const {
  const size_t free_before = waits_on_device_ ? awaited_ : ended_;
  return begun_ < std::min(allowed_, free_before + ring_.size());
}

void ParamGathers::go_on() {
  for (size_t i = ended_; i < begun_; ++i) slot_of(i).poll();
  for (;; ++begun_) {
    while (ended_ < begun_ && !slot_of(ended_).is_under_way()) ++ended_;
    if (!may_begin()) return;
    const auto& [bucket, ended] = gathers_[begun_];
    slot_of(begun_).begin(bucket.group, bucket.chunks, *ended);
  }
}

void ParamGathers::await_before(int end) {
  for (; awaited_ < gathers_.size() && gathers_[awaited_].bucket.first_use < end; ++awaited_) {
    ENSURE(awaited_ < allowed_, "use {} was not gathered since it changed",
           gathers_[awaited_].bucket.first_use);
    for (; ended_ <= awaited_; go_on()) slot_of(ended_).finish();
    stream_.wait(*gathers_[awaited_].ended);
  }
  go_on();
}

void ParamGathers::finish() {
  if (!all_awaited()) await_before(gathers_.back().bucket.first_use + 1);
}

}  // namespace trainctl::parallel::sharding
