#include "runtime/train/source_losses.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trainctl {
namespace {

/// Sources that are added at once: most jobs have no more.
constexpr size_t kSourcesTogether = 8;

// A float has 24 bits: one of at least 2^-17 is a multiple of 2^-40, and 2^12 of less than 2^10 are below
// 2^62 of these. Likewise the small ones, of at least 2^-40, in units of 2^-63.
constexpr double kLargest = 0x1p10, kLeastLarge = 0x1p-17, kLeastSmall = 0x1p-40;
constexpr double kLargeUnits = 0x1p40, kSmallUnits = 0x1p63;
constexpr size_t kFloatsTogether = 1 << 12;

/// Halves of 32 bits: a double has 53.
void add_units(int64_t value, double units, ExactSum& sum) {
  if (value == 0) return;
  sum.add(double(value >> 32) * (0x1p32 / units));
  sum.add(double(value & 0xffffffff) / units);
}

}  // namespace

void FloatSum::add(std::span<const float> values, ExactSum& sum) {
  while (!values.empty()) {
    const auto block = values.first(std::min(values.size(), kFloatsTogether - count_));
    int64_t large = 0, small = 0;
    for (const double value : block) {
      const double size = std::abs(value);
      if (size >= kLeastLarge && size < kLargest)
        large += int64_t(value * kLargeUnits);
      else if (size >= kLeastSmall && size < kLeastLarge)
        small += int64_t(value * kSmallUnits);
      else if (size != 0)
        sum.add(value);
    }
    large_ += large, small_ += small, count_ += block.size();
    values = values.subspan(block.size());
    if (count_ == kFloatsTogether) flush(sum);
  }
}

void FloatSum::flush(ExactSum& sum) {
  add_units(large_, kLargeUnits, sum);
  add_units(small_, kSmallUnits, sum);
  *this = {};
}

/// What ranks contribute, as a value that is sent.
struct SourceLosses::Sums {
  std::array<ExactSum, kSourcesTogether> losses;
  std::array<int64_t, kSourcesTogether> targets{};
  void add(const Sums& other) {
    for (size_t i = 0; i < kSourcesTogether; ++i)
      losses[i].add(other.losses[i]), targets[i] += other.targets[i];
  }
};

std::vector<SourceLosses::Run> SourceLosses::runs_of(const RankResources& rank) {
  std::vector<Run> runs;
  if (!rank.token_losses) return runs;
  parallel::SequenceCut cut = rank.tables.shape.cut;
  cut.rank = rank.at.cp;
  for (const int32_t token : cut.tokens_of(cut.rank)) {
    const auto sequence = size_t(token / rank.job.data.seq_len);
    if (runs.empty() || runs.back().sequence != sequence) runs.push_back({sequence, 0});
    ++runs.back().rows;
  }
  return runs;
}

SourceLosses::SourceLosses(const RankResources& rank) : rank_(rank), runs_(runs_of(rank)) {}

void SourceLosses::add_own(size_t first, Sums& sums) const {
  if (!rank_.token_losses) return;
  const auto place = [&](size_t source) { return source - first; };  // of one before them: beyond the end
  const auto targets = rank_.tokens->targets_of_sources();
  for (size_t source = first; source < std::min(first + kSourcesTogether, targets.size()); ++source)
    sums.targets[place(source)] += targets[source];
  const auto sources = rank_.tokens->sources();
  const auto* loss = static_cast<const float*>(rank_.token_losses->data());
  const auto of_micro_batch = size_t(rank_.job.batch.micro_sequences);
  std::array<FloatSum, kSourcesTogether> floats;
  for (size_t mb = 0; mb < size_t(rank_.plan.counted_micro_batches); ++mb)
    for (const Run& run : runs_) {
      const size_t at = place(size_t(sources[mb * of_micro_batch + run.sequence]));
      if (at < kSourcesTogether) floats[at].add({loss, run.rows}, sums.losses[at]);
      loss += run.rows;
    }
  for (size_t i = 0; i < kSourcesTogether; ++i) floats[i].flush(sums.losses[i]);
}

std::vector<SourceLoss> SourceLosses::of_step() const {
  const std::vector<DataSource>& sources = rank_.job.data.train;
  std::vector<SourceLoss> losses;
  for (size_t first = 0; sources.size() > 1 && first < sources.size(); first += kSourcesTogether) {
    Sums sums;
    add_own(first, sums);
    rank_.comms.sum(sums);
    for (size_t i = 0; i < std::min(kSourcesTogether, sources.size() - first); ++i) {
      const DataSource& source = sources[first + i];
      if (sums.targets[i] > 0)
        losses.push_back({.name = source.name.empty() ? source.path : source.name,
                          .loss = sums.losses[i].value() / double(sums.targets[i]),
                          .targets = sums.targets[i]});
    }
  }
  return losses;
}

}  // namespace trainctl
