// One token's way through a router, in double, on a device that is the machine: moe_ops.h has the formulas.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/moe_ops.h"

namespace trainctl::kernels {

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

  /// counts [E] of the token's sequence; dweights [k] -> dlogits [E]. aux: of a slot.
  void backward(const float* logits, int64_t k, const int32_t* ids, const int32_t* counts,
                const float* dweights, double aux, double z, float* dlogits) {
    score(logits);
    const bool sigmoid = router_.score == RouterScore::sigmoid;
    double all = 0, dot = 0;
    for (size_t e = 0; e < s_.size(); ++e) all += s_[e];
    if (!sigmoid) all = 1;
    for (size_t e = 0; e < s_.size(); ++e) dot += aux * counts[e] * s_[e] / all;
    // Of a softmax the last line takes the mean away.
    for (size_t e = 0; e < s_.size(); ++e) ds_[e] = (aux * counts[e] - (sigmoid ? dot : 0)) / all;
    const double sum = router_.renormalize ? chosen(k, ids) : 1;
    double mean = 0;
    for (int64_t j = 0; j < k && router_.renormalize; ++j)
      mean += double(dweights[j]) * s_[size_t(ids[j])] / sum;
    for (int64_t j = 0; j < k; ++j)
      ds_[size_t(ids[j])] += double(router_.scale) * (double(dweights[j]) - mean) / sum;
    double through = 0;
    for (size_t e = 0; e < s_.size() && !sigmoid; ++e) through += ds_[e] * s_[e];
    for (size_t e = 0; e < s_.size(); ++e)
      dlogits[e] =
          float((sigmoid ? ds_[e] * s_[e] * (1 - s_[e]) : s_[e] * (ds_[e] - through)) + 2 * z * lse_ * p_[e]);
  }

 private:
  /// Scores, the softmax of the logits, and lse.
  void score(const float* logits) {
    const size_t experts = s_.size();
    const double top = *std::max_element(logits, logits + experts);
    double sum = 0;
    for (size_t e = 0; e < experts; ++e) sum += p_[e] = std::exp(double(logits[e]) - top);
    for (size_t e = 0; e < experts; ++e) p_[e] /= sum;
    lse_ = top + std::log(sum);
    for (size_t e = 0; e < experts; ++e)
      s_[e] = router_.score == RouterScore::sigmoid ? 1 / (1 + std::exp(-double(logits[e]))) : p_[e];
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
    double sum = router_.score == RouterScore::sigmoid ? 1e-20 : 0;
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

/// SortByExpert, also on a device that is the machine: slots in order, so that the rows of an expert are.
inline void sort_by_expert(const SortByExpert& op) {
  const auto* ids = op.ids.as<int32_t>();
  auto *offsets = op.offsets.as<int32_t>(), *slots = op.slots.as<int32_t>(), *rows = op.rows.as<int32_t>();
  const int64_t count = op.ids.count(), experts = op.experts();
  std::fill(offsets, offsets + experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) ++offsets[ids[i] + 1];
  for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<int32_t> next(offsets, offsets + experts);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t row = next[size_t(ids[i])]++;
    slots[row] = int32_t(i), rows[i] = row;
  }
}

}  // namespace trainctl::kernels
