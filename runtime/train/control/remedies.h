// Remedies: what was decided about a run after its loss left its level: samples that are never trained, and
// steps with a lower learning rate. They are a part of the run's record and of each checkpoint, so that data
// order and learning rate stay pure functions of the step and of this value. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/record_fields.h"

namespace trainctl {

/// Samples [first, first + count) of the order of the data (data/dataset.h) are left out.
struct SkippedSamples {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  bool operator==(const SkippedSamples&) const = default;
  static void fields(auto& f, auto& r) {
    f("first", r.first);
    f("count", r.count);
  }
};

/// Steps [first_step, first_step + steps), counted from 1, have `factor` times the schedule's learning rate.
struct LoweredRate {
  int64_t first_step = 0, steps = 0;
  double factor = 1;
  bool operator==(const LoweredRate&) const = default;
  static void fields(auto& f, auto& r) {
    f("first_step", r.first_step);
    f("steps", r.steps);
    f("factor", r.factor);
  }
};

struct Remedies {
  std::vector<SkippedSamples> skipped;  ///< as they were decided: they may overlap
  std::vector<LoweredRate> rates;       ///< where two hold, their factors are multiplied

  bool empty() const { return skipped.empty() && rates.empty(); }
  bool operator==(const Remedies&) const = default;
  /// The number of decisions that they came from.
  int64_t count() const { return int64_t(skipped.size() + rates.size()); }
  /// The factor of the learning rate of a step, counted from 1; exactly 1 where nothing was decided.
  double rate_factor(int64_t step) const;

  static void fields(auto& f, auto& r) {
    f.when(!r.skipped.empty(), "skipped", r.skipped);
    f.when(!r.rates.empty(), "rates", r.rates);
  }
};

/// The ranges as ascending ranges that do not touch.
std::vector<SkippedSamples> merged(std::vector<SkippedSamples> ranges);

/// Those of both. What both have is one decision; two decisions of one of them may be equal, and both count.
Remedies with(Remedies known, const Remedies& more);

/// Where the n-th sample that is trained lies in the order of the data, for n = 0, 1, ...
class TrainedSamples {
 public:
  TrainedSamples() = default;
  explicit TrainedSamples(const std::vector<SkippedSamples>& skipped) : skipped_(merged(skipped)) {}
  uint64_t at(uint64_t n) const;
  const std::vector<SkippedSamples>& skipped() const { return skipped_; }

 private:
  std::vector<SkippedSamples> skipped_;
};

}  // namespace trainctl
