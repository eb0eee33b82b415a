#include "parallel/param_gathers.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl::parallel::sharding {

std::vector<GatherBucket> gather_buckets(const Layout& layout, const std::vector<int>& groups) {
  std::vector<GatherBucket> buckets;
  for (const int g : groups) {
    const GroupPlan& group = layout.plan.groups[size_t(g)];
    const int64_t least = group.bucket_elements(layout.options.bucket_elements, layout.dp);
    for (size_t end = group.chunks.size(); end > 0;) {
      size_t begin = end - 1;
      while (begin > 0 && group.elements(begin, end) < least) --begin;
      buckets.push_back({g, begin, end, group.chunks[end - 1].use});
      end = begin;
    }
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const GatherBucket& a, const GatherBucket& b) { return a.first_use < b.first_use; });
  return buckets;
}

ParamGathers::ParamGathers(const ShardedMemory& memory, DpGroup& dp, kernels::Backend& backend,
                           kernels::Stream& stream)
    : memory_(memory), dp_(dp), backend_(backend), stream_(stream) {
  std::vector<int> groups;
  for (int g = 0; g < kGroups; ++g)
    if (memory.has_flat_params(g)) groups.push_back(g);
  for (const GatherBucket& bucket : gather_buckets(memory.layout, groups)) gathers_.push_back({bucket, {}});
  begun_ = awaited_ = gathers_.size();
}

void ParamGathers::gather(int begin, int end) {
  for (; begun_ < gathers_.size() && gathers_[begun_].bucket.first_use < end; ++begun_) {
    Gather& gather = gathers_[begun_];
    ENSURE(gather.bucket.first_use >= begin, "use {} was not gathered before use {}", gather.bucket.first_use,
           begin);
    gather.ticket = exchange(gather.bucket);
  }
}

Ticket ParamGathers::exchange(const GatherBucket& bucket) {
  const GroupPlan& group = memory_.group(bucket.group);
  const std::vector<Run> runs = runs_of(group, bucket.begin, bucket.end);
  const int tag = dp_.take_tag();
  const size_t element = size_of(group.dtype);
  char* flat = memory_.flat_params(bucket.group);
  std::vector<Transfer> transfers;
  const auto add = [&](Transfer::Kind kind, int peer, Run run) {
    if (run.count > 0)
      transfers.push_back({kind, peer, flat + size_t(run.begin) * element, size_t(run.count) * element, tag});
  };
  dp_.for_each_peer([&](int peer) {
    add(Transfer::send, peer, runs[size_t(dp_.rank())]);
    add(Transfer::receive, peer, runs[size_t(peer)]);
  });
  return transfers.empty() ? Ticket() : dp_.comm.exchange(transfers, &stream_);
}

void ParamGathers::await(int end) {
  for (; awaited_ < gathers_.size() && gathers_[awaited_].bucket.first_use < end; ++awaited_) {
    auto& [bucket, ticket] = gathers_[awaited_];
    ENSURE(awaited_ < begun_, "use {} was not gathered since it changed", bucket.first_use);
    if (ticket) dp_.comm.wait(ticket, "gather parameters", stream_);
    for (size_t i = bucket.begin; i < bucket.end; ++i) {
      const FlatChunk& c = memory_.group(bucket.group).chunks[i];
      backend_.copy(stream_, memory_.flat_param(bucket.group, c), memory_.chunk_weight(c));
    }
  }
}

}  // namespace trainctl::parallel::sharding
