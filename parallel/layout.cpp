#include "parallel/layout.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

/// First row (or column) of part `part` of `parts` of `size`: exact where it divides, floor where ragged.
int64_t part_begin(int64_t size, int64_t part, int64_t parts) {
  return static_cast<int64_t>(static_cast<__int128>(size) * part / parts);
}

std::vector<int64_t> sections_of(const ParamLayout& param) {
  if (param.cut != Cut::rows || param.sections.empty()) return {param.rows};
  int64_t sum = 0;
  for (int64_t section : param.sections) {
    ENSURE(section >= 0, "{}: section of {} rows", param.name, section);
    sum += section;
  }
  ENSURE(sum == param.rows, "{}: sections sum to {}, rows = {}", param.name, sum, param.rows);
  return param.sections;
}

void ensure_param(const ParamLayout& param) {
  ENSURE(param.rows >= 0 && param.cols >= 0, "{}: [{}, {}]", param.name, param.rows, param.cols);
}

bool degree_divides(const ParamLayout& param, int64_t degree) {
  if (param.cut == Cut::none || param.ragged) return true;
  if (param.cut == Cut::cols) return param.cols % degree == 0;
  const auto sections = sections_of(param);
  return std::all_of(sections.begin(), sections.end(), [&](int64_t n) { return n % degree == 0; });
}

void sort_unique(std::vector<int64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

/// Every place where a legal degree cuts [0, size) starting at `offset`, both ends included.
void add_cuts(std::vector<int64_t>& cuts, int64_t offset, int64_t size, const std::vector<int>& degrees) {
  cuts.push_back(offset);
  cuts.push_back(offset + size);
  for (int degree : degrees) {
    for (int64_t part = 1; part < degree; ++part) cuts.push_back(offset + part_begin(size, part, degree));
  }
}

bool contains(const Box& outer, const Box& inner) {
  return inner.row_begin >= outer.row_begin && inner.row_end <= outer.row_end &&
         inner.col_begin >= outer.col_begin && inner.col_end <= outer.col_end;
}

}  // namespace

Box intersect(const Box& a, const Box& b) {
  Box box{std::max(a.row_begin, b.row_begin), std::min(a.row_end, b.row_end),
          std::max(a.col_begin, b.col_begin), std::min(a.col_end, b.col_end)};
  box.row_end = std::max(box.row_end, box.row_begin);
  box.col_end = std::max(box.col_end, box.col_begin);
  return box;
}

std::vector<int> legal_tensor_degrees(const std::vector<ParamLayout>& params, int64_t num_kv_heads) {
  ENSURE(num_kv_heads >= 1, "num_kv_heads = {}", num_kv_heads);
  std::vector<int> degrees;
  for (int64_t degree = 1; degree <= num_kv_heads; ++degree) {
    if (num_kv_heads % degree != 0) continue;
    const bool legal = std::all_of(params.begin(), params.end(),
                                   [&](const ParamLayout& param) { return degree_divides(param, degree); });
    if (legal) degrees.push_back(static_cast<int>(degree));
  }
  return degrees;
}

std::vector<int> wide_tensor_degrees(const std::vector<ParamLayout>& params,
                                     const std::vector<HeadCounts>& attentions, int64_t widest) {
  std::vector<int> degrees;
  for (int64_t degree = 2; degree <= widest; ++degree) {
    const auto shares = [&](const HeadCounts& a) { return a.kv_heads % degree != 0; };
    const auto allows = [&](const HeadCounts& a) { return a.allow(degree); };
    const auto divides = [&](const ParamLayout& param) { return degree_divides(param, degree); };
    if (std::any_of(attentions.begin(), attentions.end(), shares) &&
        std::all_of(attentions.begin(), attentions.end(), allows) &&
        std::all_of(params.begin(), params.end(), divides))
      degrees.push_back(static_cast<int>(degree));
  }
  return degrees;
}

LocalShard local_shard(const ParamLayout& param, int tp, int tp_rank) {
  ensure_param(param);
  ENSURE(tp >= 1 && tp_rank >= 0 && tp_rank < tp, "tp_rank {} of {}", tp_rank, tp);
  ENSURE(degree_divides(param, tp), "{} [{}, {}] does not divide by tp = {}", param.name, param.rows,
         param.cols, tp);
  LocalShard shard;
  const auto add = [&](const Box& global) {
    if (global.count() > 0) shard.pieces.push_back({global, shard.rows, 0});
    shard.rows += global.rows();
    shard.cols = global.cols();
  };
  if (param.cut != Cut::rows) {
    const int64_t parts = param.cut == Cut::cols ? tp : 1;
    const int64_t part = param.cut == Cut::cols ? tp_rank : 0;
    add({0, param.rows, part_begin(param.cols, part, parts), part_begin(param.cols, part + 1, parts)});
    return shard;
  }
  int64_t offset = 0;
  for (int64_t section : sections_of(param)) {
    add({offset + part_begin(section, tp_rank, tp), offset + part_begin(section, tp_rank + 1, tp), 0,
         param.cols});
    offset += section;
  }
  return shard;
}

std::vector<Box> chunk_grid(const ParamLayout& param, const std::vector<int>& legal_degrees,
                            int64_t chunk_elements) {
  ensure_param(param);
  ENSURE(chunk_elements >= 1, "chunk_elements = {}", chunk_elements);
  const std::vector<int> uncut{1};
  std::vector<int64_t> row_cuts, col_cuts;
  int64_t offset = 0;
  for (int64_t section : sections_of(param)) {
    // An uncut parameter has no inner boundaries, because every rank needs its chunks whole.
    add_cuts(row_cuts, offset, section, param.cut == Cut::rows ? legal_degrees : uncut);
    offset += section;
  }
  add_cuts(col_cuts, 0, param.cols, param.cut == Cut::cols ? legal_degrees : uncut);
  sort_unique(row_cuts);
  sort_unique(col_cuts);

  int64_t widest = 1;
  for (size_t i = 0; i + 1 < col_cuts.size(); ++i) widest = std::max(widest, col_cuts[i + 1] - col_cuts[i]);
  const int64_t rows_per_chunk = std::max<int64_t>(1, chunk_elements / widest);

  std::vector<Box> grid;
  for (size_t i = 0; i + 1 < row_cuts.size(); ++i) {
    const int64_t band = row_cuts[i + 1] - row_cuts[i];
    const int64_t parts = (band + rows_per_chunk - 1) / rows_per_chunk;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = row_cuts[i] + part_begin(band, part, parts);
      const int64_t end = row_cuts[i] + part_begin(band, part + 1, parts);
      for (size_t j = 0; j + 1 < col_cuts.size(); ++j) {
        grid.push_back({begin, end, col_cuts[j], col_cuts[j + 1]});
      }
    }
  }
  return grid;
}

std::vector<LocalChunk> local_chunks(const ParamLayout& param, int param_index, const std::vector<Box>& grid,
                                     int tp, int tp_rank) {
  const LocalShard shard = local_shard(param, tp, tp_rank);
  std::vector<LocalChunk> chunks;
  size_t first = 0;  // pieces and grid both go down the rows, earlier pieces are done
  for (size_t i = 0; i < grid.size(); ++i) {
    const Box& box = grid[i];
    while (first < shard.pieces.size() && shard.pieces[first].global.row_end <= box.row_begin) ++first;
    if (first == shard.pieces.size()) break;
    const Piece& piece = shard.pieces[first];
    if (intersect(piece.global, box).count() == 0) continue;
    ENSURE(contains(piece.global, box),
           "{}: chunk {} straddles a cut of tp = {}, which the grid does not know", param.name, i, tp);
    chunks.push_back({param_index, static_cast<int>(i), box,
                      piece.local_row + box.row_begin - piece.global.row_begin,
                      piece.local_col + box.col_begin - piece.global.col_begin});
  }
  return chunks;
}

std::vector<int> deal_owners(const std::vector<int64_t>& sizes, int dp) {
  ENSURE(dp >= 1, "dp = {}", dp);
  using Share = std::pair<int64_t, int>;   // elements so far, rank
  std::priority_queue<Share, std::vector<Share>, std::greater<>> least;
  for (int r = 0; r < dp; ++r) least.push({0, r});
  std::vector<int> owners;
  owners.reserve(sizes.size());
  for (const int64_t size : sizes) {
    ENSURE(size >= 0, "chunk of {} elements", size);
    const auto [elements, rank] = least.top();
    least.pop();
    least.push({elements + size, rank});
    owners.push_back(rank);
  }
  return owners;
}

}  // namespace trainctl::parallel
