// How much device memory the ops need beside their arguments. Pure arithmetic, known without a GPU: `plan` adds it up, the backend
// takes it once. One op runs at a time on a stream, so a backend's scratch is the largest of these.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"

namespace trainctl::kernels::cuda {

/// cuBLASLt's workspace: 32 MiB, what NVIDIA advises for Hopper.
constexpr size_t kProductWorkspaceBytes = size_t{32} << 20;

/// Rows of x that one block of norm_backward sums up before the partial sums are added in order.
constexpr int64_t kNormRowsPerBlock = 32;
constexpr size_t norm_backward_scratch(int64_t rows, int64_t cols) {
  return size_t((rows + kNormRowsPerBlock - 1) / kNormRowsPerBlock) * size_t(cols) * 2 * sizeof(float);
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

/// embedding_backward sorts tokens in chunks of at most kSortChunk, a power of two, and then merges these.
constexpr int64_t kSortChunk = 2048;
constexpr int64_t sort_chunk_of(int64_t tokens) {
  int64_t size = 2;
  while (size < tokens && size < kSortChunk) size *= 2;
  return size;
}
/// The tokens sorted by row of the table, 8 bytes each; twice, for merging from one into the other.
constexpr size_t embedding_backward_scratch(int64_t rows) {
  const int64_t chunk = sort_chunk_of(rows);
  return size_t((rows + chunk - 1) / chunk * chunk) * 16;
}

/// Elements that one block of `sum` adds up.
constexpr int64_t kSumChunk = 4096;
constexpr size_t sum_scratch(int64_t n) { return size_t((n + kSumChunk - 1) / kSumChunk) * sizeof(double); }

/// A bias in the dtype of the product's output.
constexpr size_t product_bias_scratch(int64_t cols) { return size_t(cols) * sizeof(float); }

/// What stands in scratch or in a table begins on this many bytes.
constexpr size_t kPartAlignment = 256;
constexpr size_t aligned_part(size_t bytes) { return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

/// The optimizer's boxes are cut into tiles of at most this many elements, and of at least half as many where a box is cut at all.
constexpr int64_t kOptimizerTileElements = 16384;
constexpr int64_t most_tiles(int64_t elements, int64_t boxes) { return 2 * elements / kOptimizerTileElements + boxes; }
/// One partial sum a tile, one sum a box.
constexpr size_t sum_squares_scratch(int64_t tiles, int64_t boxes) {
  return aligned_part(size_t(tiles) * sizeof(double)) + size_t(boxes) * sizeof(double);
}
constexpr size_t kTileBytes = 32;
/// The tables of a list of boxes of `box_bytes` each: boxes, tiles, and the first tile of each box.
constexpr size_t tile_table_bytes(size_t box_bytes, int64_t tiles, int64_t boxes) {
  return aligned_part(size_t(boxes) * box_bytes) + aligned_part(size_t(tiles) * kTileBytes) +
         aligned_part(size_t(boxes + 1) * sizeof(int64_t));
}

/// Of a run with these shapes: the scratch that ops use in turn, and the optimizer's tables (of adamw and of sum_squares).
size_t op_scratch_bytes(const ScratchShape& shape);
size_t optimizer_table_bytes(const ScratchShape& shape);

}  // namespace trainctl::kernels::cuda
