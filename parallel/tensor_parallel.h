// Tensor parallelism with and without sequence parallelism: how activations enter and leave the part of a layer whose
// weights are cut. Outside that part a rank holds `local_rows` of the micro-batch's `full_rows`.
//
//   with sequence parallelism      local = full / tp     enter: all-gather      leave: reduce-scatter
//   without                        local = full          enter: nothing         leave: all-reduce
//   tp = 1                         local = full          both nothing
//
// The backward of `enter` is `leave` and the other way round.
// Source: arXiv:2205.05198, section 4.2; sums in rank-tree order (invariant 5).
#pragma once
#include "kernels/backend.h"
#include "parallel/communicator.h"

namespace trainctl::parallel {

class TensorParallel {
 public:
  /// `comm` has tp members and must outlive this. scratch: scratch_bytes(...) of device memory.
  TensorParallel(Communicator& comm, kernels::Backend& backend, kernels::Stream& stream, bool sequence_parallel)
      : comm_(comm), backend_(backend), stream_(stream), cut_rows_(sequence_parallel && comm.size() > 1) {}

  int size() const { return comm_.size(); }
  int rank() const { return comm_.rank(); }
  Communicator& comm() { return comm_; }
  bool cuts_rows() const { return cut_rows_; }
  int64_t local_rows(int64_t full_rows) const { return cut_rows_ ? full_rows / comm_.size() : full_rows; }
  int64_t first_local_row(int64_t full_rows) const { return cut_rows_ ? rank() * local_rows(full_rows) : 0; }

  /// Bytes of scratch that leave() needs for an activation of full_rows x cols.
  static size_t scratch_bytes(int tp, DType dtype, int64_t full_rows, int64_t cols);
  void set_scratch(void* scratch) { scratch_ = scratch; }

  /// The full activation: `full` filled from every rank's `local`. Where nothing is cut returns `local` itself and leaves
  /// `full` alone.
  kernels::Matrix enter(kernels::Matrix local, kernels::Matrix full);
  /// Joins the ranks' partial sums. `partial` [full_rows, C] is destroyed; the result is in `local` [local_rows, C] with
  /// sequence parallelism, else in `partial` itself. Returns where it is.
  kernels::Matrix leave(kernels::Matrix partial, kernels::Matrix local);

 private:
  Communicator& comm_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  bool cut_rows_;
  void* scratch_ = nullptr;
};

}  // namespace trainctl::parallel
