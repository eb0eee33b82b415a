#include "runtime/train/quantile_balance.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace trainctl {

using kernels::kMarginBins;

namespace {

/// Where the first `wanted` of the margins end, linear within a bin; in bins. wanted: above 0, and no more
/// than there are.
double quantile_of(std::span<const int32_t> bins, double wanted) {
  double before = 0;
  size_t bin = 0;
  while (bin + 1 < bins.size() && before + bins[bin] < wanted) before += bins[bin++];
  return double(bin) + (wanted - before) / double(bins[bin]);
}

void add_counts_of_rank(void* own, const void* other, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(int32_t); ++i)
    static_cast<int32_t*>(own)[i] += static_cast<const int32_t*>(other)[i];
}

}  // namespace

std::vector<float> quantile_biases(std::span<const int32_t> counts, double share, float least, float most) {
  const std::span<const int32_t> first = counts.first(size_t(kMarginBins));
  const auto tokens = double(std::accumulate(first.begin(), first.end(), int64_t{0}));
  if (tokens == 0) return {};
  const double low = double(least) - 1, width = (double(most) + 1 - low) / double(kMarginBins);
  std::vector<double> biases;
  for (; !counts.empty(); counts = counts.subspan(size_t(kMarginBins)))
    biases.push_back(low + width * quantile_of(counts.first(size_t(kMarginBins)), share * tokens));
  const double mean = std::accumulate(biases.begin(), biases.end(), 0.0) / double(biases.size());
  std::vector<float> centred;
  for (const double bias : biases) centred.push_back(float(bias - mean));
  return centred;
}

QuantileBalance::QuantileBalance(RankResources& rank)
    : rank_(rank),
      share_(double(rank.job.model.moe.top_k) /
             double(std::max<int64_t>(1, rank.job.model.moe.num_experts))) {
  const std::span<const Margins> all = rank.model->margins();
  if (all.empty()) return;
  counts_.resize(size_t(all.front().sums.count()));
  if (rank.comms.axes[parallel::Axis::dp]->size() > 1) scratch_.resize(counts_.size());
  biases_.resize(all.size());
  clear();
}

void QuantileBalance::update() {
  const std::span<const Margins> all = rank_.model->margins();
  for (size_t i = 0; i < all.size(); ++i) {
    const Margins& margins = all[i];
    std::array<float, 2> range{};
    rank_.backend.copy_to_host(*rank_.stream, counts_.data(), margins.sums.data,
                               counts_.size() * sizeof(int32_t));
    rank_.backend.copy_to_host(*rank_.stream, range.data(), margins.range.data, sizeof range);
    rank_.stream->synchronize();
    parallel::all_combine(*rank_.comms.axes[parallel::Axis::dp], counts_.data(), scratch_.data(),
                          counts_.size() * sizeof(int32_t), add_counts_of_rank, 0, "histograms of margins");
    biases_[i] = quantile_biases(counts_, share_, range[0], range[1]);
    if (!biases_[i].empty()) set_bias(margins, biases_[i]);
  }
}

void QuantileBalance::set_bias(const Margins& margins, std::span<const float> bias) {
  const int param = rank_.plan.uses.uses[size_t(margins.use)].param;
  for (const parallel::ShardedParams::StateChunk& chunk : rank_.params->state_chunks()) {
    if (chunk.param != param) continue;
    const std::span<const float> own = bias.subspan(size_t(chunk.box.row_begin), size_t(chunk.box.count()));
    rank_.backend.copy_to_device(*rank_.stream, chunk.floats(parallel::StateRole::master), own.data(),
                                 own.size_bytes());
  }
}

}  // namespace trainctl
