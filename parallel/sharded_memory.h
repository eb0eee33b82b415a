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
  /// Whether gradients, or compute copies, of the group are kept in flat order, too.
  bool packs(int g) const { return packs_gradients(g, layout.dp); }
  bool has_flat_params(int g) const { return groups_[size_t(g)].params != nullptr; }

  kernels::Matrix weight(int use) const;
  kernels::Matrix gradient(int use, int level) const;  ///< level: of the tree over a rank's lanes
  /// A chunk in its use's gradient of level 0, and in its use's compute copy.
  kernels::Matrix chunk_gradient(const FlatChunk& c) const;
  kernels::Matrix chunk_weight(const FlatChunk& c) const;
  /// The chunk's compute copy in flat order.
  kernels::Matrix flat_param(int g, const FlatChunk& c) const;
  char* flat_params(int g) const { return static_cast<char*>(groups_[size_t(g)].params->data()); }
  /// Gradients in flat order from element `offset` of the group on.
  float* packed(int g, int64_t offset) const {
    return static_cast<float*>(groups_[size_t(g)].packed->data()) + offset;
  }
  /// What dp rank `peer` contributes to own gradients, from element `offset` of the group on.
  float* received(int g, int peer, int64_t offset) const;
  bool adds_received(int g) const { return groups_[size_t(g)].received != nullptr; }
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
    std::unique_ptr<kernels::Buffer> packed;    // gradients in flat order, f32 [size]
    std::unique_ptr<kernels::Buffer> received;  // [dp - 1][own], where own gradients are added here
    std::unique_ptr<kernels::Buffer> params;    // compute copies in flat order
  };
  std::unique_ptr<kernels::Buffer> weights_, gradients_;
  std::array<GroupMemory, kGroups> groups_;
  std::unique_ptr<kernels::Buffer> tied_received_, tp_scratch_;
  std::vector<ShardedParams::StateChunk> state_chunks_;
  std::vector<kernels::AdamWBox> boxes_;
};

}  // namespace trainctl::parallel::sharding
