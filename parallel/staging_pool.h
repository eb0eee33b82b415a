// The pinned host memory of a staged communicator, in slots for pieces of messages. Slots are reused.
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace trainctl::parallel {

/// Memory for one piece. `copied` is reached when the last copy from or to the slot is done; do not write
/// before that.
struct StagingSlot {
  std::unique_ptr<kernels::Buffer> memory;
  std::unique_ptr<kernels::Event> copied;
  int kind = 0;
};

/// Slots of two kinds: for small pieces and for whole pieces.
///
/// There are slots for two exchanges of the largest size from the start, since the rounds of two buckets may
/// be under way at one time or not, as peers come (BucketRing::kBuckets). Beyond that the amount of memory
/// depends on the exchanges that are not waited for yet, not on the speed of peers. So a program that repeats
/// its exchanges allocates only the first time. The limit per kind is kMostBytes, or the demand of two of the
/// largest exchanges if that is more: two may begin in another order on another rank, and must not wait for
/// each other's slots. An exchange without enough free slots waits for earlier exchanges.
class StagingPool {
 public:
  using Demand = std::array<size_t, 2>;   ///< slots of each kind
  static constexpr size_t kAtOnce = 2;
  static constexpr size_t kSmallBytes = size_t{64} << 10, kMostBytes = size_t{64} << 20;

  StagingPool(kernels::Backend& backend, size_t piece_bytes)
      : backend_(backend), slot_bytes_{std::min(kSmallBytes, piece_bytes), piece_bytes} {}

  int kind_for(size_t bytes) const { return bytes <= slot_bytes_[0] ? 0 : 1; }

  /// Call it when an exchange begins, and release() after the wait for it. Allocates slots if needed;
  /// Error(kHardware) if that fails.
  void reserve(const Demand& demand) {
    for (size_t k = 0; k < 2; k++) {
      demanded_[k] += demand[k];
      largest_[k] = std::max(largest_[k], demand[k]);
      const size_t two = kAtOnce * largest_[k], limit = std::max(two, kMostBytes / slot_bytes_[k]);
      while (slots_[k].size() < std::min(std::max(demanded_[k], two), limit)) {
        auto slot = std::make_unique<StagingSlot>(backend_.allocate_host(slot_bytes_[k]), backend_.create_event(), int(k));
        free_[k].push_back(slot.get());
        slots_[k].push_back(std::move(slot));
      }
    }
  }
  void release(const Demand& demand) {
    for (size_t k = 0; k < 2; k++) demanded_[k] -= demand[k];
  }

  bool has(const Demand& demand) const { return free_[0].size() >= demand[0] && free_[1].size() >= demand[1]; }
  StagingSlot* take(int kind) {
    // The one given back longest ago: its copy is the likeliest to be done.
    StagingSlot* slot = free_[kind].front();
    free_[kind].pop_front();
    return slot;
  }
  size_t bytes() const { return slots_[0].size() * slot_bytes_[0] + slots_[1].size() * slot_bytes_[1]; }
  void give_back(StagingSlot* slot) { free_[slot->kind].push_back(slot); }

 private:
  kernels::Backend& backend_;
  std::array<size_t, 2> slot_bytes_;
  std::array<std::vector<std::unique_ptr<StagingSlot>>, 2> slots_;
  std::array<std::deque<StagingSlot*>, 2> free_;
  Demand demanded_{}, largest_{};
};

}  // namespace trainctl::parallel
