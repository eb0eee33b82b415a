// The pinned host memory through which a staged communicator's pieces pass, in slots that are used again and again.
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace trainctl::parallel {

/// Room for one piece. `copied` is the last copy from or to it: nobody may write here before it is reached.
struct StagingSlot {
  std::unique_ptr<kernels::Buffer> memory;
  std::unique_ptr<kernels::Event> copied;
  int kind = 0;
};

/// Slots of two kinds, small and whole pieces, given out for one exchange at a time.
///
/// How much memory there is follows from the exchanges that are not waited for yet, never from the speed of a peer: a program that
/// repeats its exchanges allocates only the first time. It is limited to kMostBytes a kind or, if that needs more, to the demand of
/// the largest exchange; an exchange that finds too few slots free waits for those before it to end.
class StagingPool {
 public:
  using Demand = std::array<size_t, 2>;   ///< slots of each kind
  static constexpr size_t kSmallBytes = size_t{64} << 10, kMostBytes = size_t{64} << 20;

  StagingPool(kernels::Backend& backend, size_t piece_bytes)
      : backend_(backend), slot_bytes_{std::min(kSmallBytes, piece_bytes), piece_bytes} {}

  int kind_for(size_t bytes) const { return bytes <= slot_bytes_[0] ? 0 : 1; }

  /// An exchange begins; release it when it has been waited for. Takes memory if it must: Error(kHardware) when there is none.
  void reserve(const Demand& demand) {
    for (size_t k = 0; k < 2; k++) {
      demanded_[k] += demand[k];
      largest_[k] = std::max(largest_[k], demand[k]);
      const size_t limit = std::max(largest_[k], kMostBytes / slot_bytes_[k]);
      while (slots_[k].size() < std::min(demanded_[k], limit)) {
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
    StagingSlot* slot = free_[kind].front();   // the one given back longest ago: its copy is the likeliest to be done
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
