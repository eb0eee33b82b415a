// The comparison of runs: what differs in their specs, and whether they computed the same bits as the first.
// Pure.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/observe/report/run_data.h"

namespace trainctl::terminal {

/// A number of a step that is compared, bit for bit: what metrics.jsonl has of it.
struct ComparedNumber {
  const char* name;
  double report::StepRow::*value;
};
const std::vector<ComparedNumber>& compared_numbers();

/// A number of a step that is not the same in both runs.
struct StepDifference {
  int64_t step = 0;
  const char* name = "";
  double a = 0, b = 0;
  std::optional<std::array<uint64_t, 2>> digests;  ///< of the states, in place of a and b
  std::string text_a() const;                      ///< the shortest text that differs where the values do
  std::string text_b() const;
};

struct RunComparison {
  // Of the steps that both runs have.
  int64_t common_steps = 0, first_step = 0, last_step = 0, equal_steps = 0;
  int64_t only_a = 0, only_b = 0;                   ///< steps that one run has
  std::optional<StepDifference> first_difference;   ///< the first number of the first step that differs
  std::optional<StepDifference> largest_of_losses;  ///< the largest difference of two finite losses
  int64_t equal_digests = 0;  ///< steps whose states both runs digested, to the same number
  // Root hashes, which are equal where every byte of the state is; recorded when a checkpoint was published.
  std::vector<int64_t> equal_checkpoints, different_checkpoints;  ///< steps, ascending

  bool compared_anything() const {
    return common_steps > 0 || !equal_checkpoints.empty() || !different_checkpoints.empty();
  }
  /// Everything that both runs recorded is the same, and there is something.
  bool identical() const { return compared_anything() && !first_difference && different_checkpoints.empty(); }
};

RunComparison compare_runs(const report::RunData& a, const report::RunData& b);

struct ComparisonView {
  int columns = 0;  ///< width of the terminal; 0: no limit
  bool color = false;
};
/// A page for people on two or more runs.
std::string render_comparison(const std::vector<const report::RunData*>& runs, double now_unix_s,
                              const ComparisonView& view);
OrderedJson comparison_json(const report::RunData& a, const report::RunData& b,
                                       const RunComparison& comparison, double now_unix_s);

}  // namespace trainctl::terminal
