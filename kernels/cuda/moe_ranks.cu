// Which tokens go to the ranks that share experts.

#include "kernels/cuda/moe_order.cuh"
#include "kernels/cuda/ops.h"

namespace trainctl::kernels::cuda {

namespace {

/// The rows of the experts of a rank, and how the slots of a token are found.
struct RowsOfRank {
  const int32_t* rows;
  int k, begin, end;
  __device__ bool has(int slot) const { return rows[slot] >= begin && rows[slot] < end; }
  __device__ bool has_token(int64_t m) const {
    for (int64_t i = m * k; i < (m + 1) * k; ++i)
      if (has(int(i))) return true;
    return false;
  }
};
__device__ inline RowsOfRank rows_of_rank(const int32_t* rows, int k, const int32_t* offsets, int here,
                                          int rank) {
  return {rows, k, offsets[rank * here], offsets[(rank + 1) * here]};
}

/// A block for each rank counts its tokens.
__global__ void __launch_bounds__(kMoeThreads)
    count_tokens_kernel(const int32_t* rows, int64_t tokens, int k, const int32_t* offsets, int here,
                        int32_t* counts) {
  __shared__ int sums[2][kMoeThreads];
  const RowsOfRank own = rows_of_rank(rows, k, offsets, here, int(blockIdx.x));
  int count = 0;
  for (int64_t first = 0; first < tokens; first += kMoeThreads) {
    const int64_t m = first + threadIdx.x;
    count += place_among(m < tokens && own.has_token(m), sums).all;
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

/// place_kernel for the tokens of each rank.
__global__ void __launch_bounds__(kMoeThreads)
    place_tokens_kernel(const int32_t* rows, int64_t tokens, int k, const int32_t* offsets, int here,
                        const int32_t* firsts, int64_t all_tokens, int64_t all_rows, int32_t* token_of,
                        int32_t* places) {
  __shared__ int sums[2][kMoeThreads];
  const int rank = int(blockIdx.x), ranks = int(gridDim.x);
  const RowsOfRank own = rows_of_rank(rows, k, offsets, here, rank);
  int next = 0;
  for (int64_t first = 0; first < tokens; first += kMoeThreads) {
    const int64_t m = first + threadIdx.x;
    const bool goes = m < tokens && own.has_token(m);
    const PlaceAmong place = place_among(goes, sums);
    if (goes) {
      token_of[firsts[rank] + next + place.before] = int32_t(m);
      for (int64_t i = m * k; i < (m + 1) * k; ++i)
        if (own.has(int(i))) places[rows[i]] = next + place.before;
    }
    next += place.all;
  }
  if (rank < ranks - 1) return;
  for (int64_t i = firsts[ranks] + threadIdx.x; i < all_tokens; i += kMoeThreads) token_of[i] = -1;
  for (int64_t r = offsets[ranks * here] + threadIdx.x; r < all_rows; r += kMoeThreads) places[r] = -1;
}

}  // namespace

void enqueue(const Queue& queue, const TokensOfRanks& op) {
  const int64_t tokens = op.rows.cols / op.top_k;
  const int k = int(op.top_k), here = int(op.experts() / op.ranks());
  const auto *rows = op.rows.as<int32_t>(), *offsets = op.offsets.as<int32_t>();
  auto* const firsts = op.firsts.as<int32_t>();
  launch(queue, TokensOfRanks::kName, count_tokens_kernel, unsigned(op.ranks()), kMoeThreads, 0, rows, tokens, k,
         offsets, here, firsts + 1);
  launch(queue, TokensOfRanks::kName, offsets_kernel, 1, 1, 0, int(op.ranks()), firsts);
  launch(queue, TokensOfRanks::kName, place_tokens_kernel, unsigned(op.ranks()), kMoeThreads, 0, rows, tokens, k,
         offsets, here, static_cast<const int32_t*>(firsts), op.tokens.cols, op.places.cols,
         op.tokens.as<int32_t>(), op.places.as<int32_t>());
}

}  // namespace trainctl::kernels::cuda
