// Compares the predicted step of a job with the one that a run measured, and corrects the cluster from
// which it was predicted. Pure.
#pragma once
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/step_time.h"

namespace trainctl {

/// What a trace of some steps tells apart, as means over its ranks, in seconds.
struct TracedStep {
  int64_t first = 0, last = -1;
  /// Without waits; NaN: there was none. backward_s: of passes whose halves were not apart.
  double forward_s = NAN, backward_s = NAN, backward_input_s = NAN, backward_weight_s = NAN;
  /// Waits for ranks along each axis; NaN: there was none.
  double tensor_s = NAN, context_s = NAN, experts_s = NAN, pipeline_s = NAN, data_s = NAN;
};

/// A step as the ranks of a run measured it, in seconds: medians over its steps of means over its ranks.
struct MeasuredStep {
  int64_t steps = 0, first = 0, last = 0;  ///< how many, and which ones they are among
  double step_s = 0;
  double forward_s = 0, backward_s = 0;  ///< without waits for peers
  double waiting_s = 0;                  ///< for peers: exchanges, messages of the pipeline, slower ranks
  double optimizer_s = 0, data_s = 0, reporting_s = 0;
  double uneven_s = 0;  ///< by which the rank that computed longest was slower than the median one
  std::optional<TracedStep> traced;
};

/// One kind of instruction.
struct ComparedKind {
  std::string_view name;
  double predicted_s = 0, measured_s = 0;
  double difference_s() const { return measured_s - predicted_s; }
};
struct Comparison {
  ComparedKind step{"step"};
  std::vector<ComparedKind> kinds;   ///< in the order of a report; together they are the step
  std::vector<ComparedKind> traced;  ///< parts of these, where steps were traced
  std::string verdict;               ///< one sentence: what was wrong by how much
};
Comparison compare_step(const StepTime& predicted, const MeasuredStep& measured);

/// A number of the cluster file that the run decides.
struct Correction {
  std::string field;  ///< "device.product_share"
  double before = 0, after = 0;
};
struct CorrectedCluster {
  predict::ClusterModel cluster;
  std::vector<Correction> corrections;
  std::vector<std::string> undecided;  ///< what the run says nothing about, a sentence each
};
/// What a correction needs to know besides.
struct CorrectionBasis {
  bool with_pipeline = false;   ///< ranks also wait for stages of the pipeline
  bool shares_devices = false;  ///< ranks take turns on a device, so that passes of one are waits of others
  std::string source;           ///< what each changed section says of its numbers behind what it said before
};
/// `predict`: the step of the job on a cluster. Forward and backward passes decide product_share, or the rates
/// of attention where that takes longer; the optimizer the rates of other ops; waits the link of a node where
/// nothing else is waited for.
CorrectedCluster correct_cluster(const predict::ClusterModel& cluster, const MeasuredStep& measured,
                                 const std::function<StepTime(const predict::ClusterModel&)>& predict,
                                 const CorrectionBasis& basis);

std::string render_comparison(const Comparison& comparison, const MeasuredStep& measured,
                              const std::string& cluster);

}  // namespace trainctl
