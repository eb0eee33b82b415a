#include "runtime/train/measure/rank_spread.h"

#include <algorithm>
#include <functional>
#include <map>

#include "runtime/base/ensure.h"

namespace trainctl {
namespace {

using Number = std::function<double(const RankTimes&)>;

constexpr double kLeastShare = 0.15, kScatters = 4;
/// A median absolute deviation of normally distributed numbers is the standard deviation divided by this.
constexpr double kDeviation = 1.4826;
constexpr size_t kLeastRanks = 3;
/// Differences below this say nothing about a rank.
constexpr double kLeastSeconds = 0.001;

double median_of(std::vector<double> values) {
  ENSURE(!values.empty());
  const auto middle = values.begin() + ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

const NodeRanks* node_of(int rank, std::span<const NodeRanks> nodes) {
  for (const NodeRanks& node : nodes)
    if (rank >= node.first && rank < node.first + node.count) return &node;
  return nullptr;
}

/// Of the finite numbers; without a value if there are none.
template <typename Value = double>
std::optional<Spread<Value>> spread_of(std::span<const RankTimes> ranks, std::span<const NodeRanks> nodes,
                                       const Number& number) {
  std::vector<double> values;
  int least = -1, most = -1;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const double value = number(ranks[r]);
    if (!std::isfinite(value)) continue;
    values.push_back(value);
    if (least < 0 || value < number(ranks[size_t(least)])) least = int(r);
    if (most < 0 || value > number(ranks[size_t(most)])) most = int(r);
  }
  if (values.empty()) return std::nullopt;
  Spread<Value> spread{.min = Value(number(ranks[size_t(least)])),
                       .median = Value(median_of(values)),
                       .max = Value(number(ranks[size_t(most)])),
                       .min_rank = least,
                       .max_rank = most};
  if (const NodeRanks* node = node_of(least, nodes)) spread.min_node = node->name;
  if (const NodeRanks* node = node_of(most, nodes)) spread.max_node = node->name;
  return spread;
}

struct Deviation {
  int rank = 0;
  double value = 0, median = 0, share = 0;  ///< share: of the median; positive is worse
};

/// Every rank against the median of its stage; `sign` -1: a low number is the bad one.
std::vector<Deviation> deviations(std::span<const RankTimes> ranks, int stages, const Number& number,
                                  double sign) {
  std::vector<Deviation> all;
  const size_t each = ranks.size() / size_t(stages);
  for (size_t first = 0; first < ranks.size(); first += each) {
    std::vector<double> values;
    for (const RankTimes& t : ranks.subspan(first, each))
      if (std::isfinite(number(t))) values.push_back(number(t));
    if (values.size() < kLeastRanks) continue;
    const double median = median_of(values);
    for (size_t r = first; r < first + each && median > 0; ++r)
      if (const double value = number(ranks[r]); std::isfinite(value))
        all.push_back({int(r), value, median, sign * (value / median - 1)});
  }
  return all;
}

/// Those that differ by more than all ranks scatter, by node.
void add_outliers(std::vector<Outliers>& found, RankNumber of, const std::vector<Deviation>& all,
                  double least, std::span<const NodeRanks> nodes) {
  if (all.empty()) return;
  std::vector<double> shares;
  for (const Deviation& d : all) shares.push_back(std::abs(d.share));
  const double limit = std::max(kLeastShare, kScatters * kDeviation * median_of(std::move(shares)));
  std::map<std::string, Outliers> by_node;
  for (const Deviation& d : all) {
    if (d.share <= limit || std::abs(d.value - d.median) < least) continue;
    const NodeRanks* node = node_of(d.rank, nodes);
    Outliers& o = by_node[node ? node->name : ""];
    if (o.count == 0) o.of = of, o.node = node ? node->name : "";
    if (o.ranks.size() < Outliers::kMostRanks) o.ranks.push_back(d.rank);
    if (o.count == 0 || std::abs(d.value / d.median - 1) > std::abs(o.worst / o.median - 1))
      o.worst_rank = d.rank, o.worst = d.value, o.median = d.median;
    ++o.count;
  }
  for (auto& [name, o] : by_node) found.push_back(std::move(o));
}

}  // namespace

std::vector<Outliers> outliers_of(std::span<const RankTimes> ranks, int stages,
                                  std::span<const NodeRanks> nodes) {
  ENSURE(stages > 0 && ranks.size() % size_t(stages) == 0, "{} ranks, {} stages", ranks.size(), stages);
  std::vector<Outliers> found;
  const auto add = [&](RankNumber of, const Number& number, double sign, double least) {
    add_outliers(found, of, deviations(ranks, stages, number, sign), least, nodes);
  };
  add(
      RankNumber::compute_s, [](const RankTimes& t) { return t.compute_s(); }, 1, kLeastSeconds);
  add(
      RankNumber::peak_memory_bytes, [](const RankTimes& t) { return t.peak_bytes; }, 1, 0);
  add(
      RankNumber::temperature_c, [](const RankTimes& t) { return t.temperature_c; }, 1, 0);
  add(
      RankNumber::sm_clock_mhz, [](const RankTimes& t) { return t.sm_clock_mhz; }, -1, 0);
  std::stable_sort(found.begin(), found.end(), [](const Outliers& a, const Outliers& b) {
    return std::abs(a.worst / a.median - 1) > std::abs(b.worst / b.median - 1);
  });
  if (found.size() > kMostOutliers) found.resize(kMostOutliers);
  return found;
}

RankSpread rank_spread(std::span<const RankTimes> ranks, int stages, std::span<const NodeRanks> nodes) {
  const auto came = [](const RankTimes& t) { return t.came(); };
  return {.count = int(std::count_if(ranks.begin(), ranks.end(), came)),
          .compute_s = spread_of(ranks, nodes, [](const RankTimes& t) { return t.compute_s(); }),
          .wait_s = spread_of(ranks, nodes, [](const RankTimes& t) { return t.communication_s; }),
          .peak_memory_bytes =
              spread_of<uint64_t>(ranks, nodes, [](const RankTimes& t) { return t.peak_bytes; }),
          .outliers = outliers_of(ranks, stages, nodes)};
}

std::optional<GpuSpread> gpu_spread(std::span<const RankTimes> ranks, std::span<const NodeRanks> nodes) {
  const GpuSpread gpus{
      .temperature_c = spread_of(ranks, nodes, [](const RankTimes& t) { return t.temperature_c; }),
      .power_w = spread_of(ranks, nodes, [](const RankTimes& t) { return t.power_w; }),
      .sm_clock_mhz = spread_of(ranks, nodes, [](const RankTimes& t) { return t.sm_clock_mhz; })};
  return gpus.empty() ? std::nullopt : std::optional(gpus);
}

}  // namespace trainctl
