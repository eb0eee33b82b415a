// The layout of parameters over ranks: the cuts of tensor parallelism, the mesh-independent grid of chunks
// that checkpoints and the sharded optimizer share, and the owner of each chunk.
//
// A parameter is a matrix [rows, cols] (a vector is [n, 1]). All functions are
// pure; all quantities are elements.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace trainctl::parallel {

/// Half-open box of a global matrix: rows [row_begin, row_end), columns [col_begin, col_end).
struct Box {
  int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
  int64_t rows() const { return row_end - row_begin; }
  int64_t cols() const { return col_end - col_begin; }
  int64_t count() const { return rows() * cols(); }
  bool operator==(const Box&) const = default;
};
Box intersect(const Box& a, const Box& b);  ///< empty boxes have count() == 0

/// How tensor parallelism cuts a parameter.
///   none     every tp rank holds the whole parameter
///   rows     dimension 0 is cut. `sections` are consecutive groups of rows, each cut separately (q|k|v of a
///            fused weight): tp rank r holds the r-th part of every section. The sections must sum to `rows`;
///            empty: one section.
///   cols     dimension 1 is cut into equal parts
enum class Cut { none, rows, cols };

struct ParamLayout {
  std::string name;
  int64_t rows = 0, cols = 1;
  Cut cut = Cut::none;
  std::vector<int64_t> sections;
  /// True if tp need not divide what is cut (the vocabulary, the width of an expert): part r of n rows, or
  /// columns, is [n*r/tp, n*(r+1)/tp), rounded down.
  bool ragged = false;
  int64_t head_rows = 0;  ///< each section consists of heads of so many rows; 0: that means nothing here
};

/// The tensor-parallel degrees that a model allows, ascending from 1: the divisors of `num_kv_heads` that
/// divide every section and every cut number of columns of the `params` that are not ragged.
std::vector<int> legal_tensor_degrees(const std::vector<ParamLayout>& params, int64_t num_kv_heads);

/// Query heads and KV heads of an attention.
struct HeadCounts {
  int64_t heads = 0, kv_heads = 0;
  /// Whether `degree` tensor ranks may share them: each has whole query heads, and whole KV heads or, with
  /// neighbours, one of them.
  bool allow(int64_t degree) const {
    return heads % degree == 0 && (kv_heads % degree == 0 || degree % kv_heads == 0);
  }
};
/// The degrees up to `widest` at which some KV head has several ranks, ascending: each attention allows
/// them, and they divide the params as above.
std::vector<int> wide_tensor_degrees(const std::vector<ParamLayout>& params,
                                     const std::vector<HeadCounts>& attentions, int64_t widest);

/// A box of the global matrix and its position (local_row, local_col) in a rank's local matrix.
struct Piece {
  Box global;
  int64_t local_row = 0, local_col = 0;
};

/// The part of a parameter on a tp rank: a dense local matrix [rows, cols] that consists of pieces, in order.
struct LocalShard {
  int64_t rows = 0, cols = 0;
  std::vector<Piece> pieces;
};
LocalShard local_shard(const ParamLayout& param, int tp, int tp_rank);

/// The chunks of a parameter: boxes that tile it exactly, in row-major order. They depend only on the
/// parameter, the legal degrees and `chunk_elements`, never on the mesh. There is a cut at every boundary of
/// every legal degree. Between these, rows are split evenly so that no chunk has more than chunk_elements
/// elements; a single row of a piece is not split.
std::vector<Box> chunk_grid(const ParamLayout& param, const std::vector<int>& legal_degrees, int64_t chunk_elements);

/// A chunk and its position in the local matrix of a tp rank.
struct LocalChunk {
  int param = 0;      ///< index of the parameter, as passed to local_chunks
  int chunk = 0;      ///< index into chunk_grid of that parameter
  Box global;
  int64_t local_row = 0, local_col = 0;
};

/// The chunks of one parameter on tp rank `tp_rank`, in grid order. Every chunk is inside one piece.
std::vector<LocalChunk> local_chunks(const ParamLayout& param, int param_index, const std::vector<Box>& grid, int tp,
                                     int tp_rank);

/// The owner on the dp axis (0..dp-1) of each chunk, given their sizes in elements, in order. Each chunk goes
/// to the rank with the fewest elements so far, the lowest of equals. So the ranks' shares differ by at most
/// the largest chunk, and neighbouring chunks are spread over the ranks, so that all ranks take part in the
/// exchange of a bucket.
std::vector<int> deal_owners(const std::vector<int64_t>& sizes, int dp);

}  // namespace trainctl::parallel
