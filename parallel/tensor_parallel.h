// TensorParallel: how activations enter and leave the part of a layer whose weights are cut, with and without
// sequence parallelism. Outside that part a rank holds `local_rows` of the micro-batch's `full_rows`.
//
//   with sequence parallelism      local = full / tp     enter: all-gather      leave: reduce-scatter
//   without                        local = full          enter: nothing         leave: all-reduce
//   tp = 1                         local = full          both nothing
//
// The backward of `enter` is `leave`; the backward of `leave` is `enter`.
// Source: arXiv:2205.05198, section 4.2; sums in rank-tree order (invariant 5).
#pragma once
#include <span>

#include "kernels/backend.h"
#include "parallel/communicator.h"

namespace trainctl::parallel {

/// Its twin that checks placements: runtime/model/placement_twin.h.
class TensorParallel {
 public:
  virtual ~TensorParallel() = default;
  /// `comm` has tp members and must outlive this object. Call set_scratch before leave().
  TensorParallel(Communicator& comm, kernels::Backend& backend, kernels::Stream& stream, bool sequence_parallel)
      : comm_(comm), backend_(backend), stream_(stream), cut_rows_(sequence_parallel && comm.size() > 1) {}

  int size() const { return comm_.size(); }
  int rank() const { return comm_.rank(); }
  bool cuts_rows() const { return cut_rows_; }
  int64_t local_rows(int64_t full_rows) const { return cut_rows_ ? full_rows / comm_.size() : full_rows; }
  int64_t first_local_row(int64_t full_rows) const { return cut_rows_ ? rank() * local_rows(full_rows) : 0; }

  /// The bytes of device memory for set_scratch, for an activation of full_rows x cols.
  static size_t scratch_bytes(int tp, DType dtype, int64_t full_rows, int64_t cols);
  void set_scratch(void* scratch) { scratch_ = scratch; }

  /// Returns the full activation. With cut rows, fills `full` from every rank's `local` and returns it;
  /// otherwise returns `local` and does not use `full`.
  virtual kernels::Matrix enter(kernels::Matrix local, kernels::Matrix full);
  /// Adds the ranks' partial sums and returns the result: in `local` [local_rows, C] with sequence
  /// parallelism, otherwise in `partial`. Overwrites `partial` [full_rows, C].
  virtual kernels::Matrix leave(kernels::Matrix partial, kernels::Matrix local);
  /// Adds the ranks' partial `sums`, contiguous f32, in place: every rank has the whole sum.
  virtual void add(kernels::Matrix sums);
  /// Fills `all` [size * rows, C] with every rank's `own` [rows, C].
  virtual void gather(kernels::Matrix own, kernels::Matrix all);
  /// A rank's part of `rows` rows, as evenly cut as possible.
  struct Part {
    int64_t first = 0, rows = 0;
  };
  Part part_of(int64_t rows, int rank) const {
    const int64_t first = rows * rank / size();
    return {first, rows * (rank + 1) / size() - first};
  }
  /// Each of `lists` is the same on all ranks, and contiguous; every rank has its own part_of it. Fills the
  /// rest.
  virtual void complete(std::span<const kernels::Matrix> lists);
  /// Of `whole`, which is the same on all ranks, the rows of this rank's part; the size divides them.
  virtual kernels::Matrix own_rows(kernels::Matrix whole);
  /// This rank has filled own_rows(whole), and others theirs: clears the others here, so that each has a part
  /// of a sum.
  virtual void clear_others(kernels::Matrix whole);
  /// Among `ranks` neighbours, which divide the size: ranks 0 to ranks - 1 of the group are the first ones.
  /// `all` and `parts` are contiguous and hold `ranks` equal parts of rows, one for each neighbour in order.
  /// Fills all parts with the neighbours' own; this rank's is there.
  virtual void gather_near(kernels::Matrix all, int ranks);
  /// Adds the neighbours' `parts`, each its own part of them in place: other parts stay as they are.
  /// Overwrites `received`, of the same shape.
  virtual void add_near(kernels::Matrix parts, kernels::Matrix received, int ranks);

 private:
  Communicator& comm_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  bool cut_rows_;
  void* scratch_ = nullptr;
};

}  // namespace trainctl::parallel
