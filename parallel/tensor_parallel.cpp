#include "parallel/tensor_parallel.h"

#include <algorithm>
#include <vector>

namespace trainctl::parallel {

using kernels::Matrix;

size_t TensorParallel::scratch_bytes(int tp, DType dtype, int64_t full_rows, int64_t cols) {
  if (tp == 1) return 0;
  const size_t full = size_t(full_rows * cols) * size_of(dtype);
  return std::max(full, all_reduce_scratch_bytes(tp, dtype, full_rows * cols));
}

Matrix TensorParallel::enter(Matrix local, Matrix full) {
  if (!cut_rows_) return local;
  gather(local, full);
  return full;
}

void TensorParallel::gather(Matrix own, Matrix all) {
  ENSURE(own.contiguous() && all.contiguous() && all.rows == own.rows * size());
  all_gather(comm_, stream_, own.data, all.data, size_t(own.count()) * size_of(own.dtype));
}

void TensorParallel::complete(std::span<const Matrix> lists) {
  std::vector<Transfer> transfers;
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    for (size_t list = 0; list < lists.size(); ++list) {
      const Matrix& rows = lists[list];
      ENSURE(rows.contiguous());
      const auto add = [&](Transfer::Kind kind, int of) {
        const Part part = part_of(rows.rows, of);
        const size_t bytes = size_t(part.rows * rows.cols) * size_of(rows.dtype);
        if (bytes > 0)
          transfers.push_back({kind, peer, rows.row_range(part.first, part.rows).data, bytes, int(list)});
      };
      add(Transfer::send, rank());
      add(Transfer::receive, peer);
    }
  }
  if (!transfers.empty()) comm_.exchange_and_wait(transfers, "complete lists of rows", stream_);
}

Matrix TensorParallel::own_rows(Matrix whole) {
  ENSURE(whole.rows % size() == 0);
  return whole.row_range(part_of(whole.rows, rank()).first, whole.rows / size());
}

void TensorParallel::clear_others(Matrix whole) {
  ENSURE(whole.contiguous());
  const auto clear = [&](Matrix rows) {
    if (rows.rows > 0)
      backend_.run(stream_,
                   kernels::FillZero{.data = rows.data, .size = size_t(rows.count()) * size_of(rows.dtype)});
  };
  const Part own = part_of(whole.rows, rank());
  const int64_t end = own.first + own.rows;
  clear(whole.row_range(0, own.first));
  clear(whole.row_range(end, whole.rows - end));
}

void TensorParallel::gather_near(Matrix all, int ranks) {
  ENSURE(all.contiguous() && size() % ranks == 0 && all.rows % ranks == 0);
  const int first = rank() / ranks * ranks;
  const size_t bytes = size_t(all.count() / ranks) * size_of(all.dtype);
  char* const parts = static_cast<char*>(all.data);
  std::vector<Transfer> transfers;
  for (int i = 1; i < ranks; ++i) {
    const int peer = first + (rank() - first + i) % ranks;
    transfers.push_back({Transfer::send, peer, parts + size_t(rank() - first) * bytes, bytes});
    transfers.push_back({Transfer::receive, peer, parts + size_t(peer - first) * bytes, bytes});
  }
  comm_.exchange_and_wait(transfers, "gather a shared KV head", stream_);
}

void TensorParallel::add_near(Matrix parts, Matrix received, int ranks) {
  ENSURE(parts.contiguous() && received.contiguous() && received.count() == parts.count() &&
         size() % ranks == 0 && parts.rows % ranks == 0);
  const int first = rank() / ranks * ranks, here = rank() - first;
  const int64_t count = parts.count() / ranks;
  const size_t bytes = size_t(count) * size_of(parts.dtype);
  const auto part = [&](Matrix& of, int i) { return static_cast<char*>(of.data) + size_t(i) * bytes; };
  std::vector<const void*> inputs;
  std::vector<Transfer> transfers;
  for (int i = 0; i < ranks; ++i) {
    inputs.push_back(i == here ? part(parts, i) : part(received, i));
    const int there = (here + i) % ranks;
    if (i == 0) continue;
    transfers.push_back({Transfer::send, first + there, part(parts, there), bytes});
    transfers.push_back({Transfer::receive, first + there, part(received, there), bytes});
  }
  comm_.exchange_and_wait(transfers, "add the gradients of a shared KV head", stream_);
  backend_.run(
      stream_,
      kernels::TreeSum{.inputs = inputs, .out = part(parts, here), .dtype = parts.dtype, .count = count});
}

void TensorParallel::add(Matrix sums) {
  if (size() == 1) return;
  ENSURE(sums.contiguous() && scratch_ != nullptr);
  all_reduce(comm_, backend_, stream_, sums.data, scratch_, sums.dtype, sums.count());
}

Matrix TensorParallel::leave(Matrix partial, Matrix local) {
  if (size() == 1) return partial;
  ENSURE(partial.contiguous() && scratch_ != nullptr);
  if (!cut_rows_) {
    all_reduce(comm_, backend_, stream_, partial.data, scratch_, partial.dtype, partial.count());
    return partial;
  }
  ENSURE(local.contiguous() && partial.rows == local.rows * size());
  reduce_scatter(comm_, backend_, stream_, partial.data, local.data, scratch_, partial.dtype, local.count());
  return local;
}

}  // namespace trainctl::parallel
