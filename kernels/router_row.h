// One token's way through a router, in double, and a row's slot, on a device that is the machine: moe_ops.h has the
// formulas.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/moe_ops.h"

namespace trainctl::kernels {

/// Where a row finds its weight.
inline int64_t slot_of(const Matrix& slots, int64_t row) { return slots ? slots.as<int32_t>()[row] : row; }

/// The scores of one token. Holds its memory from token to token.
class RouterRow {
 public:
  RouterRow(const Router& router, int64_t experts)
      : router_(router), s_(size_t(experts)), p_(s_), ds_(s_), values_(s_) {}

  /// Of logits [E] and the bias [E], or null: ids and weights [k].
  void choose(const float* logits, const float* bias, int64_t k, int32_t* ids, float* weights) {
    score(logits);
    const bool as_they_are = !bias && router_.groups == 1;
    for (size_t e = 0; e < s_.size(); ++e)
      values_[e] = as_they_are ? double(logits[e]) : s_[e] + (bias ? double(bias[e]) : 0.0);
    if (router_.groups > 1) leave_best_groups();
    for (int64_t j = 0; j < k; ++j) {
      int32_t best = -1;
      for (int32_t e = 0; e < int32_t(s_.size()); ++e)
        if (std::find(ids, ids + j, e) == ids + j && (best < 0 || values_[size_t(e)] > values_[size_t(best)]))
          best = e;
      ids[j] = best;
    }
    const double sum = router_.renormalize ? chosen(k, ids) : 1;
    for (int64_t j = 0; j < k; ++j) weights[j] = float(double(router_.scale) * s_[size_t(ids[j])] / sum);
  }

  /// Of logits [E] and the bias [E]: what CountMargins counts of the token. k: below E.
  const std::vector<double>& margins(const float* logits, const float* bias, int64_t k) {
    score(logits);
    for (size_t e = 0; e < s_.size(); ++e) values_[e] = s_[e] + double(bias[e]);
    std::nth_element(values_.begin(), values_.begin() + std::ptrdiff_t(k), values_.end(), std::greater<>());
    for (size_t e = 0; e < s_.size(); ++e) ds_[e] = values_[size_t(k)] - s_[e];
    return ds_;
  }

  /// counts [E] of the token's sequence; dweights [k] -> dlogits [E]. aux: of a slot.
  void backward(const float* logits, int64_t k, const int32_t* ids, const int32_t* counts,
                const float* dweights, double aux, double z, float* dlogits) {
    score(logits);
    const bool of_each = router_.score != RouterScore::softmax;
    double all = 0, dot = 0;
    for (size_t e = 0; e < s_.size(); ++e) all += s_[e];
    if (!of_each) all = 1;
    for (size_t e = 0; e < s_.size(); ++e) dot += aux * counts[e] * s_[e] / all;
    // Of a softmax the last line takes the mean away.
    for (size_t e = 0; e < s_.size(); ++e) ds_[e] = (aux * counts[e] - (of_each ? dot : 0)) / all;
    const double sum = router_.renormalize ? chosen(k, ids) : 1;
    double mean = 0;
    for (int64_t j = 0; j < k && router_.renormalize; ++j)
      mean += double(dweights[j]) * s_[size_t(ids[j])] / sum;
    for (int64_t j = 0; j < k; ++j)
      ds_[size_t(ids[j])] += double(router_.scale) * (double(dweights[j]) - mean) / sum;
    double through = 0;
    for (size_t e = 0; e < s_.size() && !of_each; ++e) through += ds_[e] * s_[e];
    for (size_t e = 0; e < s_.size(); ++e)
      dlogits[e] = float(through_score(e, double(logits[e]), through) + 2 * z * lse_ * p_[e]);
  }

 private:
  double score_of(size_t e, double logit) const {
    switch (router_.score) {
      case RouterScore::softmax: return p_[e];
      case RouterScore::sigmoid: return 1 / (1 + std::exp(-logit));
      case RouterScore::sqrt_softplus:
        return std::sqrt(std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit))));
    }
    return 0;
  }
  /// The gradient of a logit through its score. through: sum s' p.
  double through_score(size_t e, double logit, double through) const {
    switch (router_.score) {
      case RouterScore::softmax: return s_[e] * (ds_[e] - through);
      case RouterScore::sigmoid: return ds_[e] * s_[e] * (1 - s_[e]);
      case RouterScore::sqrt_softplus: return s_[e] > 0 ? ds_[e] / ((1 + std::exp(-logit)) * 2 * s_[e]) : 0;
    }
    return 0;
  }
  /// Scores, the softmax of the logits, and lse.
  void score(const float* logits) {
    const size_t experts = s_.size();
    const double top = *std::max_element(logits, logits + experts);
    double sum = 0;
    for (size_t e = 0; e < experts; ++e) sum += p_[e] = std::exp(double(logits[e]) - top);
    for (size_t e = 0; e < experts; ++e) p_[e] /= sum;
    lse_ = top + std::log(sum);
    for (size_t e = 0; e < experts; ++e) s_[e] = score_of(e, double(logits[e]));
  }
  /// The sum of a group's two largest values.
  double value_of_group(size_t group, size_t size) const {
    double first = -INFINITY, second = -INFINITY;
    for (size_t e = group * size; e < (group + 1) * size; ++e) {
      if (values_[e] > first)
        second = first, first = values_[e];
      else if (values_[e] > second)
        second = values_[e];
    }
    return size > 1 ? first + second : first;
  }
  void leave_best_groups() {
    const size_t groups = size_t(router_.groups), size = s_.size() / groups;
    std::array<double, kMostRouterGroups> of_group{};
    for (size_t g = 0; g < groups; ++g) of_group[g] = value_of_group(g, size);
    for (size_t g = 0; g < groups; ++g) {
      int better = 0;
      for (size_t other = 0; other < groups; ++other)
        better += of_group[other] > of_group[g] || (of_group[other] == of_group[g] && other < g);
      if (better < router_.top_groups) continue;
      std::fill_n(values_.begin() + std::ptrdiff_t(g * size), size, -INFINITY);
    }
  }
  double chosen(int64_t k, const int32_t* ids) const {
    double sum = router_.score != RouterScore::softmax ? 1e-20 : 0;
    for (int64_t j = 0; j < k; ++j) sum += s_[size_t(ids[j])];
    return sum;
  }

  const Router router_;
  std::vector<double> s_, p_, ds_, values_;
  double lse_ = 0;
};

/// AddCounts, also on a device that is the machine.
inline void add_counts(const AddCounts& op) {
  auto* sums = op.sums.as<float>();
  if (!op.accumulate) std::fill(sums, sums + op.sums.cols, 0.0f);
  for (int64_t e = 0; e < op.sums.cols; ++e) {
    int64_t count = 0;
    for (int64_t b = 0; b < op.counts.rows; ++b) count += op.counts.as<int32_t>()[b * op.counts.cols + e];
    sums[e] += float(count);
  }
}

/// Rows from `first` on of a CountMargins, also on a device that is the machine; any threads at once.
inline void count_margins(const CountMargins& op, int64_t first, int64_t rows) {
  const int64_t experts = op.logits.cols, k = op.ids.cols;
  const auto* bias = op.bias.as<float>();
  const auto [least, most] = std::minmax_element(bias, bias + experts);
  const double low = double(*least) - 1, scale = double(kMarginBins) / (double(*most) + 1 - low);
  RouterRow row(op.router, experts);
  for (int64_t m = first; m < first + rows; ++m) {
    if (op.ids.as<int32_t>()[m * k] < 0) continue;
    const std::vector<double>& margins = row.margins(op.logits.as<float>() + m * experts, bias, k);
    for (int64_t e = 0; e < experts; ++e) {
      int32_t& bin = op.sums.as<int32_t>()[e * kMarginBins + margin_bin(margins[size_t(e)], low, scale)];
      std::atomic_ref(bin).fetch_add(1, std::memory_order_relaxed);
    }
  }
}
/// Its other result.
inline void find_bias_range(const CountMargins& op) {
  const auto* bias = op.bias.as<float>();
  const auto [least, most] = std::minmax_element(bias, bias + op.bias.cols);
  op.range.as<float>()[0] = *least;
  op.range.as<float>()[1] = *most;
}

/// Larger for a larger weight, whatever bits it has.
inline uint32_t order_of_weight(float weight) {
  uint32_t bits = 0;
  std::memcpy(&bits, &weight, sizeof bits);
  return bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
}

/// Of each slot of a SortByExpert whether it is one too many for its expert.
inline std::vector<char> slots_without_row(const SortByExpert& op) {
  std::vector<char> without(size_t(op.ids.count()), 0);
  if (op.capacity == 0) return without;
  const auto* weights = op.weights.as<float>();
  std::vector<std::vector<int32_t>> slots(size_t(op.groups * op.experts()));
  const int64_t of_group = std::max<int64_t>(1, op.ids.count() / op.groups);
  for (int64_t i = 0; i < op.ids.count(); ++i)
    slots[size_t(i / of_group * op.experts() + op.ids.as<int32_t>()[i])].push_back(int32_t(i));
  for (std::vector<int32_t>& of_expert : slots) {
    if (int64_t(of_expert.size()) <= op.capacity) continue;
    if (weights)
      std::stable_sort(of_expert.begin(), of_expert.end(), [&](int32_t a, int32_t b) {
        return order_of_weight(weights[a]) > order_of_weight(weights[b]);
      });
    for (size_t i = size_t(op.capacity); i < of_expert.size(); ++i) without[size_t(of_expert[i])] = 1;
  }
  return without;
}

/// SortByExpert, also on a device that is the machine: slots in order, so that the rows of an expert are.
inline void sort_by_expert(const SortByExpert& op) {
  const std::vector<char> without = slots_without_row(op);
  const auto* ids = op.ids.as<int32_t>();
  auto *offsets = op.offsets.as<int32_t>(), *slots = op.slots.as<int32_t>(), *rows = op.rows.as<int32_t>();
  const int64_t count = op.ids.count(), experts = op.experts();
  std::fill(offsets, offsets + experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) offsets[ids[i] + 1] += without[size_t(i)] == 0;
  for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<int32_t> next(offsets, offsets + experts);
  std::fill(slots + offsets[experts], slots + op.slots.cols, -1);
  for (int64_t i = 0; i < count; ++i) {
    rows[i] = without[size_t(i)] != 0 ? -1 : next[size_t(ids[i])]++;
    if (rows[i] >= 0) slots[rows[i]] = int32_t(i);
  }
}

}  // namespace trainctl::kernels
