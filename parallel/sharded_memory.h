// ShardedMemory is the memory of a rank's parameters, and where each part of them lies. No exchange.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "parallel/sharded_params.h"
#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

class ShardedMemory {
 public:
  /// Takes what the layout names.
  ShardedMemory(Layout layout, kernels::Backend& backend);
  ShardedMemory(const ShardedMemory&) = delete;
  ShardedMemory& operator=(const ShardedMemory&) = delete;

  const Layout layout;
  const GroupPlan& group(int g) const { return layout.plan.groups[size_t(g)]; }
  int64_t own(int g) const { return group(g).own(layout.dp_rank); }
  int64_t own_begin(int g) const { return group(g).owner_begin[size_t(layout.dp_rank)]; }
  /// Whether the group's sums have memory of their own.
  bool packs(int g) const { return packs_gradients(g, layout.dp); }

  kernels::Matrix weight(int use) const;
  /// level: of those that exist while lanes are added (level_of_lane).
  kernels::Matrix gradient(int use, int level) const;
  /// The level into which lane `lane` of this rank accumulates: those below it are the sums of the subtrees
  /// before it.
  int level_of_lane(int lane) const { return layout.reduces_lanes() ? 0 : levels_before(lane); }
  /// ZeRO-2: the same for the sums of its owned chunks.
  int own_level_of_lane(int lane) const { return layout.reduces_lanes() ? levels_before(lane) : 0; }
  /// The sums that are left when all lanes are merged.
  int subtrees() const { return layout.reduces_lanes() ? 1 : subtree_count(layout.lanes); }
  /// Levels that hold the sum of the lanes before `lane`.
  int levels_before(int lane) const {
    return subtree_count({layout.lanes.begin, layout.lanes.begin + lane});
  }
  /// A chunk in a gradient of its use, and in its use's compute copy.
  kernels::Matrix chunk_gradient(const FlatChunk& c, int level) const;
  kernels::Matrix chunk_weight(const FlatChunk& c) const;
  /// The compute copy of an own chunk of group `g` that AdamW writes and that is sent to the others:
  /// chunk_weight, or with ZeRO-3 memory of its own, since the place of its part is not always that part's.
  kernels::Matrix own_weight(int g, const FlatChunk& c) const;
  /// Sums of gradients in flat order from element `offset` of the group on, which must be owned (ZeRO-0:
  /// any). Level 0 has the result; ZeRO-2 has others, as for the gradients.
  float* summed(int g, int64_t offset, int level = 0) const {
    const int64_t levels = layout.options.zero_stage == 0 ? 0 : level * own(g);
    return static_cast<float*>(groups_[size_t(g)].summed->data()) + levels + offset - layout.state_begin(g);
  }
  /// The buffers of bucket `i` of those under way.
  char* ring_bucket(int i) const {
    return static_cast<char*>(ring_->data()) + size_t(i) * layout.ring.of_bucket();
  }
  char* ring_received(int i) const { return ring_bucket(i) + layout.ring.sums; }
  float* ring_root(int i) const { return reinterpret_cast<float*>(ring_received(i) + layout.ring.received); }
  /// The buffer of bucket `i` of compute copies under way.
  char* gather_bucket(int i) const {
    if (!gather_ring_) return ring_bucket(i);
    return static_cast<char*>(gather_ring_->data()) + size_t(i) * layout.plan.gather_ring.bucket_bytes;
  }
  float* tied_received() const { return static_cast<float*>(tied_received_->data()); }
  void* tp_scratch() const { return tp_scratch_->data(); }

  /// The chunks whose state is here, and what AdamW updates them with; equally long.
  const std::vector<ShardedParams::StateChunk>& state_chunks() const { return state_chunks_; }
  const std::vector<kernels::AdamWBox>& adamw_boxes() const { return boxes_; }

 private:
  void allocate_group(int g, kernels::Backend& backend);
  void build_state_chunks();

  struct GroupMemory {
    std::unique_ptr<kernels::Buffer> master, first_moment, second_moment;  // own run (ZeRO-0: all), f32
    std::unique_ptr<kernels::Buffer> summed;  // own gradients in flat order (ZeRO-0: all), f32
    std::unique_ptr<kernels::Buffer> weights;  // own compute copies in flat order (ZeRO-3)
  };
  std::unique_ptr<kernels::Buffer> weights_, gradients_, ring_, gather_ring_;
  std::array<GroupMemory, kGroups> groups_;
  std::unique_ptr<kernels::Buffer> tied_received_, tp_scratch_;
  std::vector<ShardedParams::StateChunk> state_chunks_;
  std::vector<kernels::AdamWBox> boxes_;
};

}  // namespace trainctl::parallel::sharding
