#include "parallel/context_parallel.h"

#include <vector>

namespace trainctl::parallel {

using kernels::Matrix;

namespace {

enum Index { kRowOfToken, kTokenOfRow };

Matrix part(Matrix of, int64_t rows, int64_t i) { return of.row_range(i * rows, rows); }

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

void ContextParallel::order(Matrix of_ranks, Matrix all) const {
  backend_.run(stream_, kernels::GatherRows{.x = of_ranks, .slots = index(kRowOfToken), .out = all});
}

void ContextParallel::gather(Matrix own, Matrix room, Matrix all) const {
  ENSURE(own.contiguous() && room.contiguous() && own.rows == cut_.rows() && room.rows == all.rows);
  if (comm_ && comm_->size() > 1)
    all_gather(*comm_, stream_, own.data, room.data, size_t(own.count()) * size_of(own.dtype));
  else
    room = own;
  order(room, all);
}

/// Returns the sum of `count` parts of `rows` rows, in the first one of them.
Matrix ContextParallel::add_parts(Matrix of, int64_t rows, int count) const {
  for (int apart = 1; apart < count; apart *= 2)
    for (int left = 0; left + apart < count; left += 2 * apart)
      backend_.run(stream_, kernels::Add{.src = part(of, rows, left + apart), .dst = part(of, rows, left)});
  return part(of, rows, 0);
}

void ContextParallel::add_all(Matrix of_blocks, Matrix of_ranks) const {
  ENSURE(of_blocks.rows == of_ranks.rows * cut_.blocks);
  const Matrix sum = add_parts(of_blocks, of_ranks.rows, cut_.blocks);
  backend_.run(stream_, kernels::GatherRows{.x = sum, .slots = index(kTokenOfRow), .out = of_ranks});
}

void ContextParallel::add(Matrix of_blocks, Matrix room, Matrix own) const {
  if (!comm_ || comm_->size() == 1) return add_all(of_blocks, own);
  const int64_t tokens = room.rows;
  ENSURE(of_blocks.rows == tokens * cut_.blocks_here() && own.contiguous() && of_blocks.contiguous());
  const Matrix sum = add_parts(of_blocks, tokens, cut_.blocks_here());
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
  backend_.run(stream_, kernels::Copy{.src = add_parts(sum, rows, comm_->size()), .dst = own});
}

namespace {

/// Copies the part of each matrix of an exchange that is rank `of`'s between its rows and its columns.
void copy_share(kernels::Backend& backend, kernels::Stream& stream, const HeadExchange& exchange,
                Matrix packed, int of, int ranks, bool to_heads) {
  int64_t at = 0;
  for (const Matrix& m : exchange.of_rows) {
    ENSURE(m.cols % ranks == 0, "{} columns of {} ranks", m.cols, ranks);
    const int64_t cols = m.cols / ranks;
    const Matrix rows = m.columns(of * cols, cols), heads = packed.columns(at, cols);
    backend.run(stream, kernels::Copy{.src = to_heads ? rows : heads, .dst = to_heads ? heads : rows});
    at += cols;
  }
  ENSURE(at == packed.cols, "{} columns of {}", at, packed.cols);
}

}  // namespace

void ContextParallel::to_heads(std::span<const HeadExchange> exchanges, const int32_t* row_numbers,
                               int32_t* all_numbers) const {
  const int64_t rows = cut_.rows();
  std::vector<Transfer> transfers;
  for (int i = 0; i < ranks(); ++i) {
    const int peer = (cut_.rank + i) % ranks();
    for (const HeadExchange& e : exchanges) {
      ENSURE(e.of_heads.contiguous() && e.room.contiguous() && e.of_heads.rows == rows * ranks());
      const bool own = peer == cut_.rank;
      const Matrix sent = part(own ? e.of_heads : e.room, rows, peer),
                   received = part(e.of_heads, rows, peer);
      copy_share(backend_, stream_, e, sent, peer, ranks(), true);
      const size_t bytes = size_t(sent.count()) * size_of(sent.dtype);
      if (own) continue;
      transfers.push_back({Transfer::send, peer, sent.data, bytes});
      transfers.push_back({Transfer::receive, peer, received.data, bytes});
    }
    if (!row_numbers) continue;
    const size_t bytes = size_t(rows) * sizeof(int32_t);
    transfers.push_back({Transfer::send, peer, const_cast<int32_t*>(row_numbers), bytes});
    transfers.push_back({Transfer::receive, peer, all_numbers + peer * rows, bytes});
  }
  comm_->exchange_and_wait(transfers, "exchange tokens for heads", stream_);
}

void ContextParallel::to_rows(std::span<const HeadExchange> exchanges) const {
  const int64_t rows = cut_.rows();
  std::vector<Transfer> transfers;
  for (int i = 1; i < ranks(); ++i) {
    const int peer = (cut_.rank + i) % ranks();
    for (const HeadExchange& e : exchanges) {
      const Matrix sent = part(e.of_heads, rows, peer), received = part(e.room, rows, peer);
      ENSURE(e.of_heads.contiguous() && e.room.contiguous() && e.room.rows == rows * ranks());
      const size_t bytes = size_t(sent.count()) * size_of(sent.dtype);
      transfers.push_back({Transfer::send, peer, sent.data, bytes});
      transfers.push_back({Transfer::receive, peer, received.data, bytes});
    }
  }
  comm_->exchange_and_wait(transfers, "exchange heads for tokens", stream_);
  for (const HeadExchange& e : exchanges)
    for (int peer = 0; peer < ranks(); ++peer)
      copy_share(backend_, stream_, e, part(peer == cut_.rank ? e.of_heads : e.room, rows, peer), peer,
                 ranks(), false);
}

}  // namespace trainctl::parallel
