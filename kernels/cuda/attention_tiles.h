// The tile sizes of the attention kernels: the widest tiles whose shared memory a block of the GPU may have.
// Pure; needs no GPU.
//
// The limit (cudaDevAttrMaxSharedMemoryPerBlockOptin) is 227 KiB on compute 9.0, 10.x and 11.0, 163 KiB on
// 8.0 and 8.7, and 99 KiB on 8.6, 8.9 and 12.x. Source: CUDA C++ Programming Guide, table "Technical
// Specifications per Compute Capability".
//
// Gradients have the same bits with all tile sizes, because each sum has the same terms in the same order.
// The forward pass without tensor cores rescales its sums once per tile, so its bits depend on the tile size
// and thus on the kind of GPU.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trainctl::kernels::cuda {

/// Every supported GPU has at least this much shared memory per block. Every shape has tiles that fit into
/// it.
constexpr size_t kLeastSharedBytes = size_t{99} << 10;

// ---- tensor cores: bf16, head dimensions 64 and 128
// ---------------------------------------------------------------------------------

constexpr bool has_tensor_tiles(int64_t head_dim) { return head_dim == 64 || head_dim == 128; }

/// Forward: one tile of queries, and a ring of tiles of keys or values.
constexpr int kForwardQueries = 128, kForwardKeys = 64, kForwardRing = 3;
constexpr size_t tensor_forward_bytes(int dim) { return size_t(kForwardQueries + kForwardRing * kForwardKeys) * size_t(dim) * 2; }

/// Backward: two resident tiles of rows, two slots with two tiles of columns each, and two slots of lse and
/// delta (f32).
constexpr int kBackwardRows = 128;
constexpr size_t tensor_backward_bytes(int dim, int columns) {
  return size_t(2 * kBackwardRows + 4 * columns) * size_t(dim) * 2 + size_t(4 * columns) * 4;
}
/// The number of columns per slot.
constexpr int tensor_backward_columns(int dim, size_t most_shared_bytes) {
  return tensor_backward_bytes(dim, 64) <= most_shared_bytes ? 64 : 32;
}

// ---- warpgroups: the same on compute 9.0, where operands begin on 16 bytes
// ---------------------------------------------------------------------------------

constexpr bool has_warpgroup_products(int compute) { return compute == 90; }

/// A block has so many warpgroups of 128 threads, each with 64 of its rows: as many as the registers of a
/// multiprocessor hold.
enum class WarpgroupPass { forward, by_keys, by_queries };
constexpr int warpgroups(WarpgroupPass pass, int dim) {
  return pass == WarpgroupPass::by_keys && dim == 64 ? 3 : 2;
}
constexpr int warpgroup_rows(WarpgroupPass pass, int dim) { return 64 * warpgroups(pass, dim); }
/// The rows that the threads of a block copy at once, 16 bytes each.
constexpr int warpgroup_rows_at_once(WarpgroupPass pass, int dim) {
  return 128 * warpgroups(pass, dim) / (dim / 8);
}

// ---- which tiles a mask needs
// ---------------------------------------------------------------------------------

/// The mask of the queries of one sequence, which are at positions [begin, end) of its keys. Kernels walk from
/// the bounds that it gives, so that a tile without a visible pair is passed only if it has the diagonal.
struct SequenceMask {
  const int32_t* first_key = nullptr;  ///< of the queries, by position; never decreasing; or null
  int window = 0;                      ///< end: none
  int end = 0, begin = 0;

  /// Of the query at position t; of the last one for the positions after it.
  constexpr int first_visible(int t) const {
    const int last = t < end ? t : end - 1, by_window = last - window + 1;
    return first_key && first_key[last] > by_window ? first_key[last] : by_window;
  }
  /// The first key that a tile of queries passes, which begins at position `query`.
  constexpr int begin_of_keys(int query) const {
    const int first = first_visible(query);
    return first < 0 ? 0 : first < query ? first : query;
  }
  /// The first query that a tile of keys passes, which begins at `key`: none before it sees one of them. It is
  /// a whole number of `columns` queries after the first one, so that the values of its tile are aligned.
  constexpr int begin_of_queries(int key, int columns) const {
    if (key >= end) return end;
    return key > begin ? begin + (key - begin) / columns * columns : begin;
  }
  /// The end of the queries that a tile of keys passes, which are those from `key` on: the first that sees none of
  /// its `rows` keys; not after `key` where there is none. Binary search.
  constexpr int end_of_queries(int key, int rows) const {
    const int last = (key + rows < end ? key + rows : end) - 1;
    int low = key < begin ? begin : key + 1;
    int high = window < end - last ? last + window : end;  // sees none, if it exists
    while (first_key && low < high) {
      const int middle = low + (high - low) / 2;
      if (first_key[middle] > last)
        high = middle;
      else
        low = middle + 1;
    }
    return high;
  }
  /// The tiles of `columns` that all tiles of `rows` pass, of one head.
  constexpr int64_t tiles_by_queries(int rows, int columns) const {
    int64_t tiles = 0;
    for (int first = begin; first < end; first += rows) {
      const int last = first + rows < end ? first + rows : end;
      tiles += (last - begin_of_keys(first) + columns - 1) / columns;
    }
    return tiles;
  }
  constexpr int64_t tiles_by_keys(int rows, int columns) const {
    int64_t tiles = 0;
    for (int first = 0; first < end; first += rows)
      if (const int queries = end_of_queries(first, rows) - begin_of_queries(first, columns); queries > 0)
        tiles += (queries + columns - 1) / columns;
    return tiles;
  }
};

// ---- f32 tiles: everything else
// -----------------------------------------------------------------------------------------------------

constexpr int64_t kMostPlainDim = 256;
/// The head dimension with its padding.
constexpr int plain_dims(int64_t head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }
/// The widest tile, in rows, of queries and of keys.
constexpr int plain_widest_tile(int dims) { return dims == 64 ? 64 : 32; }
/// The floats of a tile, and of a tile of scores. Consecutive rows are four banks apart, so eight lanes that
/// read 16 bytes of eight rows have no bank conflict.
constexpr int plain_tile_floats(int dims, int tile) { return tile * (dims + 4); }
constexpr int plain_score_floats(int tile) { return tile * (tile + 4); }

/// Forward: tiles q, k, v, and one of scores. Backward: tiles k, v, q, dout, two of scores, and lse and delta
/// of the queries.
enum class PlainPass { forward, backward };
constexpr size_t plain_bytes(PlainPass pass, int dims, int tile) {
  const int floats = pass == PlainPass::forward
                         ? 3 * plain_tile_floats(dims, tile) + plain_score_floats(tile)
                         : 4 * plain_tile_floats(dims, tile) + 2 * plain_score_floats(tile) + 2 * tile;
  return size_t(floats) * 4;
}
constexpr int plain_tile(PlainPass pass, int dims, size_t most_shared_bytes) {
  const int widest = plain_widest_tile(dims);
  return plain_bytes(pass, dims, widest) <= most_shared_bytes ? widest : widest / 2;
}

}  // namespace trainctl::kernels::cuda
