// ShardedMemory is the memory of a rank's parameters, and where each part of them lies. No exchange.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "parallel/sharded_params.h"
#include "parallel/sharding_plan.h"

namespace trainctl::parallel::sharding {

class ShardedMemory {
 public:
  /// Takes what the layout names. state_file: see ShardedParams.
  ShardedMemory(Layout layout, kernels::Backend& backend, std::unique_ptr<File> state_file);
  ShardedMemory(const ShardedMemory&) = delete;
  ShardedMemory& operator=(const ShardedMemory&) = delete;

  const Layout layout;
  const GroupPlan& group(int g) const { return layout.group(g); }
  int groups() const { return layout.groups(); }
  int64_t own(int g) const { return group(g).own(layout.share_of(g).rank); }
  int64_t own_begin(int g) const { return group(g).owner_begin[size_t(layout.share_of(g).rank)]; }
  /// The own sums of a group, in flat order, when all lanes are added: own(g) elements.
  float* own_sums(int g) const;

  kernels::Matrix weight(int use) const;
  /// level: of those that exist while lanes are added (LaneLevels).
  kernels::Matrix gradient(int use, int level) const;
  void* gradient_of_part(void* place, int part) const;  ///< ShardedParams
  int group_of(int use) const { return layout.plan.places[size_t(use)].group; }
  /// The levels of the gradients of a group.
  const LaneLevels& levels(int g) const { return layout.share_of(g).levels; }
  /// Of the group's lanes that come to this rank, counted from 0: which one it is of those that are added
  /// before a reduction.
  size_t lane_before_reduction(int g, int lane) const {
    ENSURE(lane >= 0 && lane < layout.share_of(g).lanes.count());
    return size_t(lane) % levels(g).of_lane.size();
  }
  /// A chunk in a gradient of its use, and in its use's compute copy.
  kernels::Matrix chunk_gradient(const FlatChunk& c, int level) const;
  kernels::Matrix chunk_weight(const FlatChunk& c) const;
  /// The compute copy of an own chunk of group `g` that an update writes and that is sent to the others:
  /// chunk_weight, or with ZeRO-3 memory of its own, since the place of its part is not always that part's.
  kernels::Matrix own_weight(int g, const FlatChunk& c) const;
  /// Sums of gradients in flat order from element `offset` of the group on, which must be owned (ZeRO-0:
  /// any). Level 0 has the result; where lanes are reduced there are others, as for the gradients, of owned
  /// chunks alone.
  float* summed(int g, int64_t offset, int level = 0) const {
    float* const sums = static_cast<float*>(groups_[size_t(g)].summed->data());
    if (level == 0 || layout.options.zero_stage > 0)
      return sums + level * own(g) + offset - layout.state_begin(g);
    return sums + group(g).size() + (level - 1) * own(g) + offset - own_begin(g);
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
  /// For what comes from the other ranks of the axes over which the group's sums are added, one after
  /// another.
  void* received_sums(int g) const { return groups_[size_t(g)].received->data(); }

  /// Of each group that has averages of weights in memory: average = decay * average + (1 - decay) * weight,
  /// each operation rounded once. A decay of 0 does not read them.
  void average(float decay, kernels::Backend& backend, kernels::Stream& stream) const;
  /// The same of the chunks of a part that is in the file.
  void average(const StatePlaces::Part& part, float decay, kernels::Backend& backend,
               kernels::Stream& stream) const;

  /// The chunks whose state is here, what updates them, and where they lie; equally long.
  const std::vector<ShardedParams::StateChunk>& state_chunks() const { return state_chunks_; }
  const std::vector<kernels::UpdateBox>& update_boxes() const { return boxes_; }
  const std::vector<OwnedChunk>& owned_chunks() const { return owned_; }
  /// Runs of them: those whose state is in memory, and those that come into memory together.
  const std::vector<StatePlaces::Part>& state_parts() const { return places_.parts; }
  /// Calls use(part) for all of them, while their state is in memory.
  void with_parts(StateAccess access, const std::function<void(size_t part)>& use) const;
  const StateFile* state_file() const { return state_file_.get(); }
  kernels::Matrix rows_apart(const std::byte* state) const;  ///< ShardedParams

 private:
  void allocate_group(int g, kernels::Backend& backend);
  void build_state_chunks();
  std::byte* state_place(size_t owned, size_t row) const;
  void average_chunk(size_t i, float decay, kernels::Backend& backend, kernels::Stream& stream) const;

  struct GroupMemory {
    std::vector<std::unique_ptr<kernels::Buffer>> states;  // [row]: of the own run (ZeRO-0: of all)
    std::unique_ptr<kernels::Buffer> summed;  // own gradients in flat order (ZeRO-0: all), f32
    std::unique_ptr<kernels::Buffer> weights;  // own compute copies in flat order (ZeRO-3)
    std::unique_ptr<kernels::Buffer> received;
  };
  std::unique_ptr<kernels::Buffer> weights_, gradients_, ring_, gather_ring_;
  std::vector<GroupMemory> groups_;
  std::vector<ShardedParams::StateChunk> state_chunks_;
  std::vector<kernels::UpdateBox> boxes_;
  const std::vector<OwnedChunk> owned_;
  StatePlaces places_;
  std::map<const std::byte*, kernels::Matrix> rows_apart_;
  std::unique_ptr<StateFile> state_file_;  // null: all state is in memory
};

}  // namespace trainctl::parallel::sharding
