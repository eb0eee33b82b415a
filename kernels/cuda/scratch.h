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
constexpr int64_t kNormRowsPerBlock = 64;
constexpr size_t norm_backward_scratch(int64_t rows, int64_t cols) {
  return size_t((rows + kNormRowsPerBlock - 1) / kNormRowsPerBlock) * size_t(cols) * 2 * sizeof(float);
}

constexpr int64_t kColumnSumRowsPerBlock = 128;
constexpr size_t column_sum_scratch(int64_t rows, int64_t cols) {
  return size_t((rows + kColumnSumRowsPerBlock - 1) / kColumnSumRowsPerBlock) * size_t(cols) * sizeof(float);
}

/// delta f32 [M, H], and for grouped heads the per-query-head dk, dv that are added afterwards.
constexpr size_t attention_backward_scratch(const AttentionShape& s) {
  const size_t m = size_t(s.batch * s.seq_len);
  const size_t delta = (m * size_t(s.heads) * sizeof(float) + 255) / 256 * 256;
  return delta;
}

/// embedding_backward sorts tokens in chunks of at most kSortChunk, a power of two, and then merges these.
constexpr int64_t kSortChunk = 2048;
constexpr int64_t sort_chunk_of(int64_t tokens) {
  int64_t size = 2;
  while (size < tokens && size < kSortChunk) size *= 2;
  return size;
}
/// The sorted chunks, and all tokens sorted by row of the table: 8 bytes each.
constexpr size_t embedding_backward_scratch(int64_t rows, int64_t /*vocab*/, int64_t /*cols*/) {
  const int64_t chunk = sort_chunk_of(rows);
  return size_t((rows + chunk - 1) / chunk * chunk) * 16;
}

/// Elements that one block of `sum` adds up.
constexpr int64_t kSumChunk = 4096;
constexpr size_t sum_scratch(int64_t n) { return size_t((n + kSumChunk - 1) / kSumChunk) * sizeof(double); }

}  // namespace trainctl::kernels::cuda
