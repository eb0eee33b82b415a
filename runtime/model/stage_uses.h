// The part of the model that one rank computes, by virtual stage: its layers, and the parameters that it
// uses in forward order, from the table of parameters to ShardedParams.
#pragma once
#include <tuple>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/sharded_params.h"
#include "parallel/step_program.h"
#include "runtime/model/params.h"

namespace trainctl {

/// What is kept of a layer's forward pass for backward; the rest is computed again.
enum class Kept : uint8_t { all, all_but_cheap, input };

/// A layer of a virtual stage. begin, end, sublayers: indices into StageUses::uses.
struct LayerUses {
  LayerRef plan;
  Kept kept = Kept::all;
  int begin = 0, end = 0;
  std::vector<SublayerUses> sublayers;
};

/// A module of multi-token prediction; `at` by the places of MtpPlan.
struct MtpUses {
  LayerUses layer;  ///< begin, end: of the whole module
  SublayerUses own;
};

/// A part of a virtual stage and its uses. Parts are computed in forward order.
struct StagePart {
  enum Kind { embedding, layer, final_norm, mtp_embedding, mtp_module, head } kind = layer;
  int begin = 0, end = 0;             ///< uses
  int index = 0;                      ///< of a layer: which one of the virtual stage; likewise of a module
};

struct VirtualStageUses {
  bool first = false, last = false;   ///< holds the embedding; holds the final norm and the head
  int begin = 0, end = 0;
  int embedding = -1, position = -1;
  std::vector<LayerUses> layers;
  int64_t first_layer = 0;
  int final_norm_weight = -1, final_norm_bias = -1, head = -1;
  int mtp_embedding = -1;    ///< of the tokens ahead
  std::vector<MtpUses> mtp;  ///< on the last one
  std::vector<StagePart> parts;
  parallel::VirtualStageParts part_count() const { return {int(parts.size()), last}; }
};

/// Calls each(LayerUses) for the layers of a virtual stage, then for those of its modules.
template <typename Each>
void for_each_layer(const VirtualStageUses& virtual_stage, Each each) {
  for (const LayerUses& layer : virtual_stage.layers) each(layer);
  for (const MtpUses& module : virtual_stage.mtp) each(module.layer);
}

/// The chunk grids of all parameters.
struct ChunkGrids {
  std::vector<std::vector<parallel::Box>> grids;
  int64_t total = 0;   ///< chunks of the model
};
ChunkGrids chunk_grids(const ParamTable& table, double chunk_mib);

/// What decides the work and the memory of a virtual stage. Stages that are equal in it are planned once,
/// however many there are; they differ in the micro-batches that they hold.
using VirtualStageClass = std::tuple<bool, bool, std::vector<std::pair<const LayerPlan*, Kept>>>;

struct StageUses {
  LayerShape shape;
  NormPlan final_norm;
  EndsPlan ends;
  std::vector<Rotary> rotaries;  ///< of the whole model
  int64_t vocabulary = 0;        ///< of the whole model
  uint32_t hadamard_signs = 0;   ///< of the run: 16, from its seed
  std::vector<parallel::ParamUse> uses;
  /// Of each: of the product with it, with the run's seed, for gradients that are rounded at random; of the
  /// experts of a layer one for all.
  std::vector<uint64_t> noise;
  std::vector<VirtualStageUses> virtual_stages;  ///< local virtual stages in order
  std::vector<VirtualStageClass> stage_class() const;
};

/// What is the same for all ranks of a job: the model, its parameters, how each is cut for checkpoints,
/// and which layers each virtual stage has.
struct ModelTables {
  ModelPlan model;
  LayerShape shape;
  ParamTable params;
  ChunkGrids grids;
  std::vector<int64_t> stage_layers;
};
/// model: in place of the job's own.
ModelTables model_tables(const JobSpec& job, std::optional<ModelPlan> model = std::nullopt);

StageUses stage_uses(const ModelTables& tables, const JobSpec& job, const parallel::MeshPosition& at);

/// ZeRO-3: compute copies are kept by their owners alone, and gathered for each use.
bool shards_weights(const ParallelSpec& parallelism);

/// How a step is cut into lanes, micro-batches, stages and their halves. A JobSpec becomes one by itself.
struct StepCut {
  StepCut(const JobSpec& job);
  ParallelSpec parallelism;
  int64_t micro_batches_per_lane;
  bool splits_backward;  ///< the weight half of backward runs separately from the input half
  /// Micro-batches that a data-parallel rank computes in a step.
  int64_t micro_batches_of(int dp_rank) const {
    return micro_batches_per_lane * parallelism.lanes_computed_by(dp_rank);
  }
  /// Those of its own lanes, which come first: their losses, targets and counts are those of the step.
  int64_t counted_micro_batches_of(int dp_rank) const {
    return micro_batches_per_lane * parallelism.counted_lanes_of(dp_rank);
  }
  bool shares_gradients() const { return parallelism.reduces_each_lane() && micro_batches_per_lane == 1; }
  bool shares_weights() const { return shards_weights(parallelism) && parallelism.reshard_after_forward; }
};

/// The ShardingOptions of a rank, but for what its device decides.
parallel::ShardingOptions sharding_options(const StepCut& cut, const MuonSpec& muon);

}  // namespace trainctl
