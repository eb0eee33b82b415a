#include "parallel/context_parallel.h"

#include <vector>

namespace trainctl::parallel {

using kernels::Matrix;

namespace {

enum Index { kRowOfToken, kTokenOfRow };

}  // namespace

size_t context_index_bytes(const SequenceCut& cut) {
  return cut.exists() ? 2 * size_t(cut.sequences * cut.seq_len) * sizeof(int32_t) : 0;
}

ContextParallel::ContextParallel(const SequenceCut& cut, Communicator* comm, kernels::Backend& backend,
                                 kernels::Stream& stream)
    : cut_(cut),
      comm_(comm),
      backend_(backend),
      stream_(stream),
      indices_(backend.allocate(context_index_bytes(cut))) {
  ENSURE(cut.ranks == (comm ? comm->size() : 1) && cut.rank == (comm ? comm->rank() : 0),
         "a cut for rank {} of {}", cut.rank, cut.ranks);
  if (!backend.computes()) return;
  const size_t tokens = size_t(cut.sequences * cut.seq_len);
  std::vector<int32_t> indices(2 * tokens);
  int32_t row = 0;  // of all ranks', one rank after another
  for (int rank = 0; rank < cut.ranks; ++rank)
    for (const int32_t token : cut.tokens_of(rank)) {
      indices[size_t(token)] = row;
      indices[tokens + size_t(row++)] = token;
    }
  backend.copy_to_device(stream, indices_->data(), indices.data(), indices.size() * sizeof(int32_t));
  stream.synchronize();  // the host memory ends here
}

Matrix ContextParallel::index(int which) const {
  const int64_t tokens = cut_.sequences * cut_.seq_len;
  return kernels::matrix(static_cast<int32_t*>(indices_->data()) + which * tokens, DType::i32, 1, tokens);
}

void ContextParallel::gather(Matrix own, Matrix room, Matrix all) const {
  ENSURE(own.contiguous() && room.contiguous() && own.rows == cut_.rows() && room.rows == all.rows);
  if (comm_ && comm_->size() > 1)
    all_gather(*comm_, stream_, own.data, room.data, size_t(own.count()) * size_of(own.dtype));
  else
    room = own;
  backend_.run(stream_, kernels::GatherRows{.x = room, .slots = index(kRowOfToken), .out = all});
}

void ContextParallel::add(Matrix of_blocks, Matrix room, Matrix own) const {
  const int64_t tokens = room.rows;
  const auto part = [](Matrix of, int64_t rows, int64_t i) { return of.row_range(i * rows, rows); };
  /// Leaves the sum of `count` parts of `rows` rows in the first one.
  const auto add_parts = [&](Matrix of, int64_t rows, int count) {
    for (int apart = 1; apart < count; apart *= 2)
      for (int left = 0; left + apart < count; left += 2 * apart)
        backend_.run(stream_, kernels::Add{.src = part(of, rows, left + apart), .dst = part(of, rows, left)});
  };
  ENSURE(of_blocks.rows == tokens * cut_.blocks_here() && own.contiguous() && of_blocks.contiguous());
  add_parts(of_blocks, tokens, cut_.blocks_here());
  const Matrix sum = part(of_blocks, tokens, 0);
  if (!comm_ || comm_->size() == 1) {
    backend_.run(stream_, kernels::GatherRows{.x = sum, .slots = index(kTokenOfRow), .out = own});
    return;
  }
  backend_.run(stream_, kernels::GatherRows{.x = sum, .slots = index(kTokenOfRow), .out = room});
  const int64_t rows = cut_.rows();
  const size_t bytes = size_t(own.count()) * size_of(own.dtype);
  std::vector<Transfer> transfers;  // the sum of each rank's blocks for the rows of this one, in rank order
  for (int i = 0; i < comm_->size(); ++i) {
    const int peer = (comm_->rank() + i) % comm_->size();
    transfers.push_back({Transfer::send, peer, part(room, rows, peer).data, bytes});
    transfers.push_back({Transfer::receive, peer, part(sum, rows, peer).data, bytes});
  }
  comm_->exchange_and_wait(transfers, "exchange the gradients of keys and values", stream_);
  add_parts(sum, rows, comm_->size());
  backend_.run(stream_, kernels::Copy{.src = part(sum, rows, 0), .dst = own});
}

}  // namespace trainctl::parallel
