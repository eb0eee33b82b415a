// Evaluation: the mean loss over the first sequences of the validation set. The weights do not change.
#pragma once
#include <cstdint>
#include <functional>

#include "data/dataset.h"
#include "runtime/model/executor.h"
#include "runtime/train/rank_resources.h"

namespace trainctl {

/// When a run is evaluated, and on how much of its validation set.
class Evaluation {
 public:
  explicit Evaluation(const JobSpec& job);

  /// Whether an evaluation follows step `step` (from 1), where there is validation data: after every so
  /// many steps, and after the last of the run.
  bool follows(int64_t step) const;
  /// The number of sequences that an evaluation reads of a set that holds `available`: a whole number of
  /// micro-batches, the same on every mesh.
  int64_t sequences(int64_t available) const;
  /// Error(kData) if the validation data do not have a micro-batch, or if no target of the sequences that are
  /// evaluated counts. Reads them up to the first that does.
  ///   progress   called with the sequences read and all of them, from time to time
  void check(const data::Dataset& validation,
             const std::function<void(uint64_t done, uint64_t total)>& progress = {}) const;
  /// Mean loss per target that counts. Collective; the same value on every rank.
  double loss(data::Dataset& validation, RankResources& rank, Executor& executor,
              RankActivity& activity) const;

 private:
  const EvalSpec spec_;
  const bool counts_boundaries_;
  const int64_t micro_sequences_, seq_len_;
  const int together_;
  const int64_t last_step_;
};

}  // namespace trainctl
