// RankGrid: the times of every rank over the steps, for a picture in which a slow rank is seen at once; from
// the lines of metrics.ranks.jsonl. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"

namespace trainctl::report {

/// The numbers of each rank in one step; NaN: not known.
struct RankColumn {
  int64_t step = 0;
  std::vector<double> compute_s, wait_s, peak_memory_bytes;
};

class RankGrid {
 public:
  /// Of two lines of a step the later one counts.
  void take(std::string_view line);
  const std::map<int64_t, RankColumn>& columns() const { return columns_; }
  int64_t damaged() const { return damaged_; }

 private:
  std::map<int64_t, RankColumn> columns_;
  int64_t damaged_ = 0;
};

/// The median of the finite values of each stage, which has consecutive ranks; of all together if they cannot
/// be divided. NaN: a stage has none.
std::vector<double> stage_medians(const std::vector<double>& values, size_t stages);

/// At most `most_cells` numbers of each kind. Steps after `last_step` belong to an attempt that was given up,
/// and are left out. Of several steps in a stretch the one is shown in which a rank differs most; of more
/// than kMostRankRows ranks, those in a row of the picture have the largest number of theirs.
///
///   {"rows": 64, "ranks": 64, "ranks_a_row": 1, "steps": [...], "compute_s": [[of each row], ...],
///    "wait_s": ..., "median_s": [[of each stage], ...], "stages": 2, "peak_memory_bytes": [of each rank]}
///
/// `stages`: each has the same number of consecutive ranks. Null if there is no line.
OrderedJson rank_grid_json(const RankGrid& grid, int stages, int64_t last_step, size_t most_cells);
inline constexpr size_t kMostRankRows = 256;

}  // namespace trainctl::report
