#include "runtime/train/schedule.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"

namespace trainctl {

double learning_rate(const ScheduleSpec& s, int64_t step) {
  if (step < s.warmup_steps) return s.lr * double(step + 1) / double(s.warmup_steps);
  const double t = std::min(1.0, double(step - s.warmup_steps) / double(std::max<int64_t>(1, s.total_steps - s.warmup_steps)));
  switch (s.type) {
    case LrSchedule::constant: return s.lr;
    case LrSchedule::linear: return s.lr + (s.min_lr - s.lr) * t;
    case LrSchedule::cosine: return s.min_lr + 0.5 * (s.lr - s.min_lr) * (1 + std::cos(3.141592653589793 * t));
    case LrSchedule::wsd: {
      const int64_t start = s.total_steps - s.decay_steps;
      if (step < start || s.decay_steps == 0) return s.lr;
      return s.lr + (s.min_lr - s.lr) * std::min(1.0, double(step - start + 1) / double(s.decay_steps));
    }
  }
  return s.lr;
}

double learning_rate(const ScheduleSpec& s, int64_t step, const Remedies& remedies) {
  return learning_rate(s, step) * remedies.rate_factor(step + 1);
}

double batch_lr_factor(BatchLrRule rule, int64_t before, int64_t now) {
  ENSURE(before > 0 && now > 0, "steps of {} and {} tokens", before, now);
  if (before == now) return 1;
  const double ratio = double(now) / double(before);
  switch (rule) {
    case BatchLrRule::none: return 1;
    case BatchLrRule::linear: return ratio;
    case BatchLrRule::square_root: return std::sqrt(ratio);
  }
  return 1;
}

int64_t DataPosition::samples_at(const BatchSpec& batch, int64_t at_step) const {
  return samples + (at_step - step) * batch.global_sequences;
}

int64_t DataPosition::tokens_at(int64_t tokens_per_step, int64_t at_step) const {
  return tokens + (at_step - step) * tokens_per_step;
}

std::vector<uint64_t> sample_indices(const BatchSpec& batch, const ParallelSpec& p, int64_t first, int dp,
                                     const TrainedSamples& trained) {
  const uint64_t per_lane = uint64_t(batch.global_sequences) / uint64_t(p.lanes);
  std::vector<uint64_t> indices;
  for (int i = 0; i < p.lanes_computed_by(dp); ++i)
    for (uint64_t s = 0; s < per_lane; ++s)
      indices.push_back(trained.at(uint64_t(first) + uint64_t(p.lane_of(dp, i)) * per_lane + s));
  return indices;
}

}  // namespace trainctl
