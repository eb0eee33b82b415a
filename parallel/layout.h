// Which rank holds which part of which parameter: tensor-parallel cuts, the mesh-independent chunk grid that
// checkpoints and the sharded optimizer share, and the owner of each chunk.
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
///   none     every tp rank holds all of it
///   rows     dimension 0 is cut; `sections` are consecutive row groups each cut on its own (q|k|v of a fused weight), so
///            tp rank r holds the r-th part of every section. Sections must sum to `rows`; empty = one section.
///   cols     dimension 1 is cut into equal parts
enum class Cut { none, rows, cols };

struct ParamLayout {
  std::string name;
  int64_t rows = 0, cols = 1;
  Cut cut = Cut::none;
  std::vector<int64_t> sections;
  /// True where a section need not divide by tp (the vocabulary): part r of n rows is [n*r/tp, n*(r+1)/tp) (floor).
  bool ragged = false;
};

/// The tensor-parallel degrees a model allows, ascending, always starting with 1: the divisors of `num_kv_heads` that
/// divide every even (non-ragged) section or cut column count of `params`.
std::vector<int> legal_tensor_degrees(const std::vector<ParamLayout>& params, int64_t num_kv_heads);

/// One global piece of a rank's local matrix: global box `global` stands at (local_row, local_col) of the local matrix.
struct Piece {
  Box global;
  int64_t local_row = 0, local_col = 0;
};

/// The part of a parameter that a tp rank holds: a dense local matrix [rows, cols] made of pieces in order.
struct LocalShard {
  int64_t rows = 0, cols = 0;
  std::vector<Piece> pieces;
};
LocalShard local_shard(const ParamLayout& param, int tp, int tp_rank);

/// The grid of chunks of a parameter: row-major order of boxes that tile it exactly. Depends on the parameter, the legal
/// degrees and `chunk_elements` alone, never on the mesh. Cuts fall on every boundary of every legal degree; between them rows
/// are split evenly so that no chunk exceeds chunk_elements (one row of a piece is never split further by columns).
std::vector<Box> chunk_grid(const ParamLayout& param, const std::vector<int>& legal_degrees, int64_t chunk_elements);

/// A chunk as a tp rank sees it: where its box stands in the local matrix.
struct LocalChunk {
  int param = 0;      ///< index into the vector given
  int chunk = 0;      ///< index into chunk_grid of that parameter
  Box global;
  int64_t local_row = 0, local_col = 0;
};

/// All chunks of one parameter that tp rank `tp_rank` holds, in grid order. Every chunk lies wholly in one piece.
std::vector<LocalChunk> local_chunks(const ParamLayout& param, int param_index, const std::vector<Box>& grid, int tp,
                                     int tp_rank);

/// Owner on the dp axis (0..dp-1) of each of `sizes` (elements, in order): each goes to the rank that has least so far, the lowest of
/// equals. So shares differ by no more than the largest chunk, and neighbours are spread over the ranks: a bucket of them is exchanged
/// by all ranks at once, not sent to one.
std::vector<int> deal_owners(const std::vector<int64_t>& sizes, int dp);

}  // namespace trainctl::parallel
