#include "runtime/observe/report/expert_map.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/record.h"
#include "runtime/observe/report/step_rows.h"

namespace trainctl::report {
namespace {

using OfLayers = std::vector<double> ExpertRecord::*;

constexpr std::pair<const char*, OfLayers> kOfLayers[] = {
    {"most", &ExpertRecord::most},          {"least", &ExpertRecord::least},
    {"entropy", &ExpertRecord::entropy},    {"idle", &ExpertRecord::idle},
    {"dropped", &ExpertRecord::dropped},    {"bias_least", &ExpertRecord::bias_least},
    {"bias_most", &ExpertRecord::bias_most}};

/// Throws where `line` is not what it should be.
ExpertRecord record_of_line(const Json& line) {
  ExpertRecord r{.step = line.at("step").get<int64_t>(),
                 .steps = line.value("steps", int64_t{1}),
                 .experts = line.at("experts").get<int64_t>(),
                 .top_k = line.value("top_k", int64_t{0}),
                 .layers = line.at("layers").get<std::vector<int>>()};
  const auto fits = [&](size_t size) { return size == 0 || size == r.layers.size(); };
  for (const auto& [key, member] : kOfLayers) {
    if (line.contains(key)) r.*member = line.at(key).get<std::vector<double>>();
    if (!fits((r.*member).size())) throw BadRecord(key);
  }
  for (const auto& [key, member] : {std::pair{"load", &ExpertRecord::load}, {"bias", &ExpertRecord::bias}}) {
    if (line.contains(key)) r.*member = line.at(key).get<std::vector<std::vector<double>>>();
    if (!fits((r.*member).size())) throw BadRecord(key);
    for (const std::vector<double>& row : r.*member)
      if (int64_t(row.size()) != r.experts) throw BadRecord(key);
  }
  if (r.layers.empty() || r.most.empty()) throw BadRecord("layers");
  return r;
}

double most_uneven(const ExpertRecord& record) {
  return *std::max_element(record.most.begin(), record.most.end());
}

/// One record of each stretch, and the newest.
std::vector<const ExpertRecord*> shown_records(const std::vector<const ExpertRecord*>& all, size_t most) {
  if (all.size() <= most) return all;
  std::vector<const ExpertRecord*> shown;
  for (size_t s = 0; s < most; ++s) {
    const auto begin = all.begin() + ptrdiff_t(all.size() * s / most);
    const auto end = all.begin() + ptrdiff_t(all.size() * (s + 1) / most);
    shown.push_back(*std::max_element(begin, end, [](const ExpertRecord* a, const ExpertRecord* b) {
      return most_uneven(*a) < most_uneven(*b);
    }));
  }
  if (shown.back() != all.back()) shown.push_back(all.back());
  return shown;
}

/// How far a load is from the mean one: none is farthest.
double unevenness(double load) { return load > 0 ? std::abs(std::log2(load)) : INFINITY; }

/// The numbers of `values` at the experts of each cell whose load is farthest from the mean one.
OrderedJson cells_json(const std::vector<std::vector<double>>& loads,
                       const std::vector<std::vector<double>>& values, size_t each) {
  OrderedJson rows = OrderedJson::array();
  for (size_t l = 0; l < loads.size(); ++l) {
    OrderedJson row = OrderedJson::array();
    for (size_t first = 0; first < loads[l].size(); first += each) {
      size_t chosen = first;
      for (size_t e = first; e < std::min(first + each, loads[l].size()); ++e)
        if (unevenness(loads[l][e]) > unevenness(loads[l][chosen])) chosen = e;
      row.push_back(number(values[l][chosen], 3));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

OrderedJson newest_map(const ExpertRecord& r) {
  const size_t cells = r.layers.size() * size_t(r.experts);
  const size_t each = std::max<size_t>(1, (cells + kMostMapCells - 1) / kMostMapCells);
  OrderedJson map{{"step", r.step},
                  {"steps", r.steps},
                  {"experts_a_cell", each},
                  {"load", cells_json(r.load, r.load, each)}};
  if (!r.bias.empty()) map["bias"] = cells_json(r.load, r.bias, each);
  return map;
}

}  // namespace

void ExpertMap::take(std::string_view text) try {
  ExpertRecord record = record_of_line(parse_json(text));
  // A run that went back does the later steps again.
  records_.erase(records_.lower_bound(record.step), records_.end());
  // The page shows the newest map alone.
  if (!record.load.empty())
    for (auto& [step, earlier] : records_) earlier.load.clear(), earlier.bias.clear();
  records_[record.step] = std::move(record);
} catch (const std::exception&) {
  ++damaged_;
}

OrderedJson expert_map_json(const ExpertMap& map, int64_t last_step, size_t most_cells) {
  std::vector<const ExpertRecord*> all;
  const ExpertRecord* with_map = nullptr;
  for (const auto& [step, record] : map.records()) {
    if (step > last_step) continue;
    if (!all.empty() && all.back()->layers != record.layers) all.clear();  // of another model
    all.push_back(&record);
    if (!record.load.empty()) with_map = &record;
  }
  if (all.empty()) return {};
  const ExpertRecord& newest = *all.back();
  const auto shown = shown_records(all, std::max<size_t>(most_cells / newest.layers.size(), 1));
  OrderedJson j{{"experts", newest.experts}, {"top_k", newest.top_k}, {"layers", newest.layers}};
  for (const char* key : {"steps", "covered"}) j[key] = OrderedJson::array();
  j["left_out"] = all.size() - shown.size();
  for (const ExpertRecord* record : shown) {
    j["steps"].push_back(record->step);
    j["covered"].push_back(record->steps);
    for (const auto& [key, member] : kOfLayers) {
      if ((newest.*member).empty()) continue;
      OrderedJson column = OrderedJson::array();
      for (const double value : record->*member) column.push_back(number(value, 4));
      j[key].push_back(std::move(column));
    }
  }
  if (with_map && with_map->layers == newest.layers) j["map"] = newest_map(*with_map);
  return j;
}

}  // namespace trainctl::report
