// ChoiceCosts: bounds of the memory and the time of a MeshChoice, from counts of single layers. Each kind of
// layer is counted once for ranks that cut it alike; choices that differ in schedule, pipeline or width alone
// are added up from these counts. No bound is above what the plan and the prediction of the job say.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "runtime/model/flops.h"
#include "runtime/model/stage_uses.h"
#include "runtime/plan/mesh_choice.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/step_tally.h"
#include "runtime/predict/op_time.h"

namespace trainctl {

/// Of a choice, the ranks that are neighbours on a node (DeviceModel::ranks_on_node).
using RanksOnNode = std::function<int(const MeshChoice&)>;

/// A computation of a micro-batch with its exchanges, in seconds; that of several layers is the sum.
struct PassSeconds {
  double work = 0;    ///< of the device
  double excess = 0;  ///< by which the host's time is longer than that; below 0: shorter
  double tensor = 0, context = 0, experts = 0;
  double sum() const { return work + std::max(0.0, excess) + tensor + context + experts; }
  PassSeconds& operator+=(const PassSeconds& other);
  friend PassSeconds operator*(double times, const PassSeconds& p);
};
struct PassCosts {
  PassSeconds forward, backward_input, backward_weight;
  PassCosts& operator+=(const PassCosts& other);
  friend PassCosts operator*(double times, const PassCosts& costs);
};

/// Where the time of a step goes by these counts, in seconds, as a mean of the stages.
struct BoundParts {
  double work = 0;       ///< without what is computed again
  double recompute = 0;  ///< of layers
  double tensor = 0, context = 0, experts = 0, bubble = 0, data = 0;
};

class ChoiceCosts {
 public:
  /// device: with a cluster. lanes: that the job gives; 0: they follow from the data-parallel width.
  ChoiceCosts(const JobSpec& job, const DeviceModel& device, RanksOnNode ranks_on_node, int64_t lanes);

  /// Bytes of the rank that takes most; on a machine, of all its ranks. worst_stage: gets its stage.
  double least_bytes(const MeshChoice& choice, int* worst_stage = nullptr);
  /// Seconds of a step, in closed form.
  double least_seconds(const MeshChoice& choice);
  /// The same with the pipeline's program simulated. job: the checked job of the choice. buckets: of a rank of
  /// each kind of stage; none: not known.
  double simulated_seconds(const MeshChoice& choice, const JobSpec& job,
                           const std::vector<BucketCounts>& buckets = {});
  /// Of the choice; job: as above, or null.
  BoundParts parts(const MeshChoice& choice, const JobSpec* job);
  /// As stage_layers of the job with the choice.
  const std::vector<int64_t>& layers_of(const MeshChoice& choice);
  /// The device of a choice on its nodes.
  DeviceModel device_of(const MeshChoice& choice);

 private:
  /// One kind of layer, computed again as Kept says.
  struct LayerCosts {
    PassCosts costs;
    PassCosts edges;              // what a virtual stage has besides, for its input and its output
    double activation_bytes = 0;  // of a micro-batch
    double scratch_bytes = 0;     // of one at a time
    bool known = false;
  };
  /// What ranks that cut layers alike have.
  struct CutCosts {
    std::vector<std::array<LayerCosts, 3>> layers;  // [kind][Kept]
    std::array<PassCosts, 3> embedding, head;       // [Kept]: of modules of multi-token prediction
    std::array<double, 3> head_scratch = {};
    double edge_bytes = 0;  // of a message between stages
  };
  using CutKey = std::tuple<int, int, int, int64_t, int>;  // tensor, context, expert, micro, ranks on a node
  struct Parameters {
    double dense = 0, of_experts = 0;
    Parameters& operator+=(const Parameters& other);
  };
  struct StageCosts {
    double forward = 0, backward_input = 0, backward_weight = 0;
    double all() const { return forward + backward_input + backward_weight; }
  };

  /// Of a rank in a step, or a little less.
  double micro_batches_of(const MeshChoice& choice) const;
  int ranks_on_node(const MeshChoice& choice);
  CutCosts& cut_of(const MeshChoice& choice);
  const LayerCosts& layer(CutCosts& cut, const MeshChoice& choice, size_t kind, Kept kept);
  void count(CutCosts& cut, const MeshChoice& choice, size_t kind, Kept kept);
  PassCosts costs_of(const MicroBatchTally& tally, const ParallelSpec& p, int on_node) const;
  PassSeconds pass_of(const StepTally& tally, const ParallelSpec& p, int on_node,
                      double of_experts = 1) const;
  void add_stage_costs(const MeshChoice& choice);
  Parameters parameters_of(const MeshChoice& choice, int stage, bool with_ends);
  double activation_bound(const MeshChoice& choice, int stage);
  double pipeline_bound(const MeshChoice& choice, double micro_batches) const;
  double simulated_passes(const StepCut& cut) const;
  double exchange_bound(const MeshChoice& choice, const Parameters& sent, double bytes_of_element,
                        const std::vector<BucketCounts>& buckets);
  double data_bound(const MeshChoice& choice, const JobSpec* job, double micro_batches, double passes_s,
                    const std::vector<BucketCounts>& buckets = {});
  double step_bound(const MeshChoice& choice, const JobSpec* job, double micro_batches, double passes_s,
                    const std::vector<BucketCounts>& buckets = {});

  const JobSpec& job_;
  const DeviceModel& device_;
  const int64_t lanes_;
  const bool nccl_;
  const RanksOnNode ranks_on_node_;
  predict::ClusterModel cluster_;
  const ModelPlan model_;
  const std::vector<LayerRef> kinds_;
  const PartFlops part_flops_;
  std::vector<std::vector<int64_t>> before_;  // [kind][layer] layers of that kind in front of it
  std::vector<Parameters> of_kind_;
  Parameters embedding_, head_;
  double state_bytes_ = 0;  // of a parameter
  std::map<CutKey, CutCosts> cuts_;
  std::map<std::tuple<int, int, bool>, std::vector<int64_t>> layers_;
  std::map<std::tuple<int, int, int>, int> on_node_;  // by what a placement keeps together, and all ranks
  std::vector<StageCosts> stages_;  // of the last choice: of its virtual stages in the order of the model
  PassSeconds all_stages_;          // likewise, of all of them
  double edge_s_ = 0;               // likewise
};

}  // namespace trainctl
