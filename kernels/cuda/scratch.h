// The scratch memory of the ops on a CUDA device. Pure; needs no GPU. `plan` counts it, and the backend
// allocates it once. One op at a time uses the scratch, so its size is the largest of the sizes below.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"

namespace trainctl::kernels::cuda {

/// cuBLASLt's workspace: 32 MiB, as NVIDIA recommends for Hopper.
constexpr size_t kProductWorkspaceBytes = size_t{32} << 20;

/// The rows of x that one block of norm_backward sums. The partial sums of all blocks are then added in
/// order.
constexpr int64_t kNormRowsPerBlock = 32;
constexpr size_t norm_backward_scratch(int64_t rows, int64_t cols) {
  return size_t((rows + kNormRowsPerBlock - 1) / kNormRowsPerBlock) * size_t(cols) * 2 * sizeof(float);
}

/// The groups of columns that one block of group_norm_backward sums: so many that there are at most 1024 blocks.
/// It takes no more than norm_backward_scratch of rows twice as wide.
constexpr int64_t group_norm_block_items(int64_t items) {
  return std::max<int64_t>(32, (items + 1023) / 1024);
}
constexpr size_t group_norm_backward_scratch(int64_t rows, int64_t cols, int64_t group) {
  const int64_t items = rows * (cols / group), block = group_norm_block_items(items);
  return size_t((items + block - 1) / block * group) * sizeof(float);
}

constexpr int64_t kColumnSumRowsPerBlock = 128;
constexpr size_t column_sum_scratch(int64_t rows, int64_t cols) {
  return size_t((rows + kColumnSumRowsPerBlock - 1) / kColumnSumRowsPerBlock) * size_t(cols) * sizeof(float);
}

/// lse and delta, f32 [B, H, T], each sequence padded to whole tiles of queries.
constexpr int64_t kAttentionRowPad = 128;
constexpr size_t attention_backward_scratch(const AttentionShape& s) {
  const int64_t rows = (s.seq_len + kAttentionRowPad - 1) / kAttentionRowPad * kAttentionRowPad;
  return size_t(s.batch * s.heads * rows) * 2 * sizeof(float);
}

/// The rows of one head that one block of head_scalar_backward sums: less scratch memory than
/// attention_backward.
constexpr int64_t kScalarRowsPerBlock = 128;
constexpr size_t head_scalar_scratch(int64_t rows, int64_t heads) {
  return size_t((rows + kScalarRowsPerBlock - 1) / kScalarRowsPerBlock) * size_t(heads) * sizeof(float);
}

/// embedding_backward sorts tokens in blocks of at most kSortChunk tokens (a power of two) and then merges
/// the blocks.
constexpr int64_t kSortChunk = 2048;
constexpr int64_t sort_chunk_of(int64_t tokens) {
  int64_t size = 2;
  while (size < tokens && size < kSortChunk) size *= 2;
  return size;
}
/// The tokens sorted by their row of the table, 8 bytes each, in two buffers for merging.
constexpr size_t embedding_backward_scratch(int64_t rows) {
  const int64_t chunk = sort_chunk_of(rows);
  return size_t((rows + chunk - 1) / chunk * chunk) * 16;
}

/// The elements that one block of `sum` adds.
constexpr int64_t kSumChunk = 4096;
constexpr size_t sum_scratch(int64_t n) { return size_t((n + kSumChunk - 1) / kSumChunk) * sizeof(double); }

/// A bias in the dtype of the product's output.
constexpr size_t product_bias_scratch(int64_t cols) { return size_t(cols) * sizeof(float); }

/// The alignment, in bytes, of each part of scratch memory or of a table.
constexpr size_t kPartAlignment = 256;
constexpr size_t aligned_part(size_t bytes) { return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

/// The optimizer's boxes are cut into tiles of at most this many elements. A box that is cut has tiles of at
/// least half as many.
constexpr int64_t kOptimizerTileElements = 16384;
constexpr int64_t most_tiles(int64_t elements, int64_t boxes) { return 2 * elements / kOptimizerTileElements + boxes; }
/// One partial sum per tile, one sum per box.
constexpr size_t sum_squares_scratch(int64_t tiles, int64_t boxes) {
  return aligned_part(size_t(tiles) * sizeof(double)) + size_t(boxes) * sizeof(double);
}
constexpr size_t kTileBytes = 32;
/// The tables of a list of boxes of `box_bytes` each: boxes, tiles, and the first tile of each box.
constexpr size_t tile_table_bytes(size_t box_bytes, int64_t tiles, int64_t boxes) {
  return aligned_part(size_t(boxes) * box_bytes) + aligned_part(size_t(tiles) * kTileBytes) +
         aligned_part(size_t(boxes + 1) * sizeof(int64_t));
}

/// For a run with these shapes, in bytes: the scratch memory of the ops, and the optimizer's tables (adamw
/// and sum_squares).
size_t op_scratch_bytes(const ScratchShape& shape);
size_t optimizer_table_bytes(const ScratchShape& shape);

}  // namespace trainctl::kernels::cuda
