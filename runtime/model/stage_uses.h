// The parameters that one rank uses, in forward order and by virtual stage: from the table of parameters to
// ShardedParams.
#pragma once
#include <vector>

#include "parallel/mesh.h"
#include "parallel/sharded_params.h"
#include "parallel/step_program.h"
#include "runtime/model/params.h"
#include "runtime/model/sublayers/sublayer.h"

namespace trainctl {

/// Indices into StageUses::uses.
struct LayerUses {
  int begin = 0, end = 0;
  std::vector<SublayerUses> sublayers;
};

/// A part of a virtual stage and its uses. Parts are computed in forward order.
struct StagePart {
  enum Kind { embedding, layer, final_norm, head } kind = layer;
  int begin = 0, end = 0;             ///< uses
  int index = 0;                      ///< of a layer: which one of the virtual stage
};

struct VirtualStageUses {
  bool first = false, last = false;   ///< holds the embedding; holds the final norm and the head
  int begin = 0, end = 0;
  int embedding = -1, position = -1;
  std::vector<LayerUses> layers;
  int64_t first_layer = 0;
  int final_norm_weight = -1, final_norm_bias = -1, head = -1;
  std::vector<StagePart> parts;
  parallel::VirtualStageParts part_count() const { return {int(parts.size()), last}; }
};

struct StageUses {
  std::vector<parallel::ParamUse> uses;
  std::vector<VirtualStageUses> virtual_stages;      ///< local virtual stages in order
};

StageUses stage_uses(const ParamTable& table, const JobSpec& job, const parallel::MeshPosition& at);

/// The chunk grids of all parameters.
struct ChunkGrids {
  std::vector<std::vector<parallel::Box>> grids;
  int64_t total = 0;   ///< chunks of the model
};
ChunkGrids chunk_grids(const ParamTable& table, double chunk_mib);

/// From ZeRO-2 on: the gradients of a lane are reduced as soon as they are complete, and the dp ranks compute
/// neighbouring lanes at one time. Otherwise a rank has neighbouring lanes, reduced once a step.
bool reduces_each_lane(const JobSpec& job);

/// ZeRO-3: compute copies are kept by their owners alone, and gathered for each use.
bool shards_weights(const JobSpec& job);

/// The ShardingOptions of a rank of `job`, but for what its device decides.
parallel::ShardingOptions sharding_options(const JobSpec& job);

}  // namespace trainctl
