// ExpertMap: how evenly the experts of each layer are used over the steps, for pictures in which an expert
// without tokens is seen at once; from the lines of metrics.experts.jsonl. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"

namespace trainctl::report {

/// The numbers of one line; see expert_line (runtime/train/measure/expert_load.h).
struct ExpertRecord {
  int64_t step = 0, steps = 1;
  int64_t experts = 0, top_k = 0;
  std::vector<int> layers;
  std::vector<double> most, least, entropy, idle;      ///< of each layer
  std::vector<double> dropped, bias_least, bias_most;  ///< likewise; empty: there are none
  std::vector<std::vector<double>> load, bias;         ///< [layers][experts]; empty: not in this line
};

class ExpertMap {
 public:
  /// Of two lines of a step the later one counts; later steps are then forgotten.
  void take(std::string_view line);
  const std::map<int64_t, ExpertRecord>& records() const { return records_; }
  int64_t damaged() const { return damaged_; }

 private:
  std::map<int64_t, ExpertRecord> records_;
  int64_t damaged_ = 0;
};

/// At most about `most_cells` numbers of each kind. Steps after `last_step` belong to an attempt that was given
/// up, and are left out. Of several records in a stretch the one is shown in which a layer is most uneven; of
/// more than kMostMapCells experts in all, those in a cell of the map have the load that is farthest from 1.
///
///   {"experts": 64, "top_k": 8, "layers": [1, 2, ...], "steps": [...], "covered": [...], "left_out": 0,
///    "most": [[of each layer], ...], "least": ..., "entropy": ..., "idle": ...,
///    "map": {"step": 900, "steps": 100, "experts_a_cell": 1, "load": [[of each expert], ...], "bias": ...}}
///
/// "covered": a record is of so many steps, up to its own. Null if there is no line.
OrderedJson expert_map_json(const ExpertMap& map, int64_t last_step, size_t most_cells);
inline constexpr size_t kMostMapCells = 32768;

}  // namespace trainctl::report
