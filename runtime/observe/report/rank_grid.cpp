#include "runtime/observe/report/rank_grid.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/json.h"
#include "runtime/observe/report/step_rows.h"

namespace trainctl::report {
namespace {

std::vector<double> numbers_at(const Json& line, const char* key) {
  std::vector<double> values;
  const auto found = line.find(key);
  if (found == line.end() || !found->is_array()) return values;
  for (const Json& value : *found) values.push_back(value.is_number() ? value.get<double>() : NAN);
  return values;
}

double median_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return NAN;
  const auto middle = values.begin() + ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// How much longer than its stage the slowest rank computes.
double excess(const RankColumn& column, size_t stages) {
  const std::vector<double> middle = stage_medians(column.compute_s, stages);
  const size_t each = column.compute_s.size() / middle.size();
  double most = 0;
  for (size_t r = 0; each > 0 && r < column.compute_s.size(); ++r)
    if (const double share = column.compute_s[r] / middle[r / each]; share > most) most = share;
  return most;
}

OrderedJson column_json(const std::vector<double>& values, size_t ranks_a_row) {
  OrderedJson column = OrderedJson::array();
  for (size_t first = 0; first < values.size(); first += ranks_a_row) {
    double most = NAN;
    for (size_t r = first; r < std::min(first + ranks_a_row, values.size()); ++r)
      if (std::isnan(most) || values[r] > most) most = values[r];
    column.push_back(number(most, 4));
  }
  return column;
}

/// One column of each stretch.
std::vector<const RankColumn*> shown_columns(const std::vector<const RankColumn*>& all, size_t most,
                                             size_t stages) {
  if (all.size() <= most) return all;
  std::vector<const RankColumn*> shown;
  for (size_t s = 0; s < most; ++s) {
    const auto begin = all.begin() + ptrdiff_t(all.size() * s / most);
    const auto end = all.begin() + ptrdiff_t(all.size() * (s + 1) / most);
    shown.push_back(*std::max_element(begin, end, [&](const RankColumn* a, const RankColumn* b) {
      return excess(*a, stages) < excess(*b, stages);
    }));
  }
  return shown;
}

}  // namespace

std::vector<double> stage_medians(const std::vector<double>& values, size_t stages) {
  if (stages == 0 || values.size() % stages != 0) stages = 1;
  const size_t each = values.size() / stages;
  std::vector<double> result;
  for (size_t s = 0; s < stages; ++s)
    result.push_back(
        median_of({values.begin() + ptrdiff_t(s * each), values.begin() + ptrdiff_t((s + 1) * each)}));
  return result;
}

void RankGrid::take(std::string_view text) {
  const Json line = try_parse_json(text);
  const auto step = line.is_object() ? line.find("step") : line.end();
  if (!line.is_object() || step == line.end() || !step->is_number_integer()) {
    ++damaged_;
    return;
  }
  RankColumn column{.step = step->get<int64_t>(),
                    .compute_s = numbers_at(line, "compute_s"),
                    .wait_s = numbers_at(line, "wait_s"),
                    .peak_memory_bytes = numbers_at(line, "peak_memory_bytes")};
  if (column.compute_s.empty()) {
    ++damaged_;
    return;
  }
  // A run that went back does the later steps again.
  columns_.erase(columns_.lower_bound(column.step), columns_.end());
  columns_[column.step] = std::move(column);
}

OrderedJson rank_grid_json(const RankGrid& grid, int stages, int64_t last_step, size_t most_cells) {
  std::vector<const RankColumn*> all;
  size_t ranks = 0;
  for (const auto& [step, column] : grid.columns())
    if (step <= last_step) {
      all.push_back(&column);
      ranks = std::max(ranks, column.compute_s.size());
    }
  if (all.empty()) return {};
  const size_t ranks_a_row = (ranks + kMostRankRows - 1) / kMostRankRows;
  const size_t rows = (ranks + ranks_a_row - 1) / ranks_a_row;
  const size_t parts = size_t(std::max(stages, 1));
  OrderedJson j{{"rows", rows}, {"ranks", ranks}, {"ranks_a_row", ranks_a_row}, {"stages", parts}};
  for (const char* key : {"steps", "compute_s", "wait_s", "median_s"}) j[key] = OrderedJson::array();
  for (const RankColumn* column : shown_columns(all, std::max<size_t>(most_cells / rows, 1), parts)) {
    j["steps"].push_back(column->step);
    j["compute_s"].push_back(column_json(column->compute_s, ranks_a_row));
    j["wait_s"].push_back(column_json(column->wait_s, ranks_a_row));
    OrderedJson middle = OrderedJson::array();
    for (const double value : stage_medians(column->compute_s, parts)) middle.push_back(number(value, 4));
    j["median_s"].push_back(std::move(middle));
  }
  j["peak_memory_bytes"] = column_json(all.back()->peak_memory_bytes, 1);
  return j;
}

}  // namespace trainctl::report
