// InstructionTimes: how long each computation and each message of the pipeline takes on each stage, from the
// counted ops of a micro-batch. The predicted step, the timeline and the table of schedules read these times.
// Pure.
#pragma once
#include <optional>
#include <vector>

#include "parallel/pipeline.h"
#include "runtime/plan/device_model.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/step_tally.h"
#include "runtime/predict/cluster.h"
#include "runtime/predict/op_time.h"

namespace trainctl {

/// One computation of a micro-batch in a virtual stage, with the exchanges within it, in seconds.
struct PhaseCost {
  predict::TimeParts work;
  double tensor = 0, context = 0, experts = 0;
  double sum() const { return work.sum() + tensor + context + experts; }
  PhaseCost& operator+=(const PhaseCost& other);
};
struct VirtualStageCost {
  PhaseCost forward, backward_input, backward_weight;
  double edge_s = 0;  ///< of a message to the next stage
  double backward_s() const { return backward_input.sum() + backward_weight.sum(); }
};
struct StageCost {
  std::vector<VirtualStageCost> virtual_stages;
  predict::TimeParts updates, moves;  ///< of a step: the optimizer; what fills and empties buckets
};

/// The passes of a step through the pipeline.
struct PredictedPasses {
  double time_s = 0;
  double idle_s = 0;  ///< of all stages together
};

class InstructionTimes {
 public:
  /// Of data-parallel rank 0. Predicted for `cluster`; null: computations take what their FLOPs take at the
  /// peak of the device, messages what their bytes take on its link. Where these are not known computations
  /// take time in proportion to their FLOPs, messages none. The arguments must outlive this object.
  InstructionTimes(const JobSpec& job, const DeviceModel& device, const predict::ClusterModel* cluster);

  /// Of a forward, backward_input or backward_weight.
  double seconds(int stage, const parallel::Instruction& i) const;
  /// Of the message that follows it to another stage.
  double message_seconds(int stage, const parallel::Instruction& i) const;
  /// The program of a step simulated with these times; `micro_batches`: so many instead of the step's.
  parallel::Timeline timeline(std::optional<int> micro_batches = {}) const;
  /// Of all micro-batches. Past those that fill the pipeline, each further round of them adds as much time
  /// and as much idle time.
  PredictedPasses passes() const;

  const StageCost& stage(int pp) const { return classes_[stages_[size_t(pp)]]; }
  /// One of each class of stages.
  const std::vector<StageCost>& classes() const { return classes_; }
  const ModelTables& tables() const { return tables_; }
  /// As it is for this job: f32 products by TF32; CPU ranks of a machine reach each other through its memory,
  /// also where there are more of them than cores. Only where the times are predicted.
  const predict::ClusterModel& cluster() const { return *cluster_; }

 private:
  PredictedPasses simulated(int micro_batches) const;
  PhaseCost phase_cost(const StepTally& tally) const;
  StageCost cost_of(const parallel::MeshPosition& at) const;
  StageCost counted_cost_of(const parallel::MeshPosition& at) const;
  predict::WorkKind kind(double passes) const;

  const JobSpec& job_;
  const DeviceModel& device_;
  std::optional<predict::ClusterModel> cluster_;
  const ModelTables tables_;
  std::vector<StageCost> classes_;
  std::vector<size_t> stages_;  // the class of each stage
};

}  // namespace trainctl
