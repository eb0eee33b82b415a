// GradientReduction adds the gradients of a rank with those of its dp peers, in buckets, while the backward pass
// goes on; then over tp and over the two uses of a tied embedding.
#pragma once
#include <array>
#include <vector>

#include "parallel/sharded_exchange.h"
#include "parallel/sharded_memory.h"

namespace trainctl::parallel::sharding {

class GradientReduction {
 public:
  /// tied_peer: see ShardedParams. All must outlive this object.
  GradientReduction(const ShardedMemory& memory, DpGroup& dp, Communicator& tp, Communicator* tied_peer,
                    kernels::Backend& backend, kernels::Stream& stream);

  /// See ShardedParams.
  void merge_lane(int use, int lane);
  void reduce(int begin, int end);
  void finish();

 private:
  void launch_ready();
  void launch(int g, size_t begin, size_t end);
  void pack(int g, size_t begin, size_t end);
  std::vector<Transfer> transfers_to_owners(int g, const std::vector<Run>& runs);
  void sum_own(int g);
  void finish_partial();
  void finish_tied();
  float* tied_run(int g) const;
  void gather_flat(int g, void* flat, DType dtype);

  /// How far a group's exchanges are.
  struct Progress {
    size_t ready = 0;     // chunks whose gradient is complete (a prefix)
    size_t launched = 0;  // chunks whose exchange has started
    std::vector<Ticket> pending;
  };
  const ShardedMemory& memory_;
  DpGroup& dp_;
  Communicator& tp_;
  Communicator* const tied_peer_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  std::array<Progress, kGroups> groups_;
  std::vector<bool> use_complete_;
};

}  // namespace trainctl::parallel::sharding
