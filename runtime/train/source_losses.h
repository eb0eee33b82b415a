// SourceLosses makes of a step's losses those of each source of its data. They are added without rounding, as
// the loss itself: the same bits on every mesh.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/exact_sum.h"
#include "runtime/train/measure/step_line.h"
#include "runtime/train/rank_resources.h"

namespace trainctl {

/// Adds floats into an ExactSum: what it adds is exact, and takes a few instructions of each float of the
/// size that losses have, where the sum itself takes some hundred.
class FloatSum {
 public:
  void add(std::span<const float> values, ExactSum& sum);
  /// Call it behind the last value.
  void flush(ExactSum& sum);

 private:
  int64_t large_ = 0, small_ = 0;
  size_t count_ = 0;
};

class SourceLosses {
 public:
  /// `rank` must outlive it.
  explicit SourceLosses(const RankResources& rank);
  /// Of the sources with targets in the step, in the order of data.train; empty where there is one source.
  /// Call it when the losses are there: the stream has come to the step's end. Collective, where there are
  /// several sources.
  std::vector<SourceLoss> of_step() const;

 private:
  struct Sums;
  /// Adds what this rank has of the sources [first, first + Sums' size).
  void add_own(size_t first, Sums& sums) const;

  const RankResources& rank_;
  /// The rows of a micro-batch: so many neighbours of a sequence of it.
  struct Run {
    size_t sequence = 0, rows = 0;
  };
  static std::vector<Run> runs_of(const RankResources& rank);
  const std::vector<Run> runs_;
};

}  // namespace trainctl
