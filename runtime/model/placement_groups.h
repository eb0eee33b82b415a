// The groups of ranks as the twin of placements knows them: the tensor group, and those whose exchanges the
// model makes itself.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "parallel/communicator.h"
#include "parallel/tensor_parallel.h"
#include "runtime/model/placement_twin.h"

namespace trainctl {

/// What a group moves whose exchanges the model makes itself.
enum class Moves {
  others,   ///< its ranks are not those along the axis: what arrives is placed as what is sent
  context,  ///< rows of sequences: some are gathered to all, parts of sums go to the ranks of their rows
  experts   ///< rows of tokens, to the ranks of experts and back: a rank's own tokens, or its part of them
};
/// Makes the communicator of such a group for rank `rank` of `size`; a test puts a faulty one there.
using MakeExchangeTwin =
    std::function<std::unique_ptr<parallel::Communicator>(Placements&, Moves, int rank, int size)>;

class PlacementExchange : public parallel::Communicator {
 public:
  PlacementExchange(Placements& placements, Moves moves, int rank, int size);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  parallel::Ticket exchange(std::span<const parallel::Transfer> transfers, kernels::Stream* after) override;
  bool test(parallel::Ticket& ticket) override {
    ticket.reset();
    return true;
  }
  using Communicator::wait;
  void wait(parallel::Ticket& ticket, const char*) override { ticket.reset(); }
  std::unique_ptr<Communicator> subgroup(const parallel::Subgroup&) override { return nullptr; }
  std::unique_ptr<Communicator> twin() override { return nullptr; }
  int world_rank(int r) const override { return r; }
  double deadline_s() const override { return 0; }
  void set_deadline(double) override {}
  double waited_s() const override { return 0; }
  uint64_t sent_bytes() const override { return 0; }

 private:
  parallel::Placement arriving(parallel::Placement in, bool to_all);

  Placements& placements_;
  const Moves moves_;
  const int rank_, size_;
  parallel::Placement home_ = parallel::Placement::none;  ///< of rows before they went to experts
  const std::string name_;
};

/// The tensor group as its twin knows it. is_tensor_axis: the placements are those along the tensor group
/// itself; else its sums and gathers change none of them.
class PlacementTensorParallel : public parallel::TensorParallel {
 public:
  PlacementTensorParallel(Placements& placements, bool is_tensor_axis, parallel::Communicator& comm,
                          kernels::Backend& backend, kernels::Stream& stream, bool sequence_parallel)
      : TensorParallel(comm, backend, stream, sequence_parallel),
        placements_(placements),
        is_tensor_axis_(is_tensor_axis) {}
  kernels::Matrix enter(kernels::Matrix local, kernels::Matrix full) override;
  kernels::Matrix leave(kernels::Matrix partial, kernels::Matrix local) override;
  void add(kernels::Matrix sums) override;
  void gather(kernels::Matrix own, kernels::Matrix all) override;
  void gather_near(kernels::Matrix all, int ranks) override;
  void add_near(kernels::Matrix parts, kernels::Matrix received, int ranks) override;
  void complete(std::span<const kernels::Matrix> lists) override;
  kernels::Matrix own_rows(kernels::Matrix whole) override;
  void clear_others(kernels::Matrix whole) override;

 private:
  /// This rank's part of what neighbours exchange.
  kernels::Matrix own_part(const kernels::Matrix& all, int ranks) const {
    return all.row_range(rank() % ranks * (all.rows / ranks), all.rows / ranks);
  }

  Placements& placements_;
  bool is_tensor_axis_;
};

}  // namespace trainctl
