// Which layers each stage of a pipeline has where some of its ranks compute longer than others. The cut never
// changes bits. Pure.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/spec/parse.h"

namespace trainctl {

/// Ranks that compute longer than those with the same work, by this share of their time.
struct SlowShare {
  std::vector<int> ranks;
  double share = 0;
};

struct StageBalance {
  std::vector<int64_t> layers;  ///< of each virtual stage, as parallelism.stage_layers
  double faster = 0;            ///< by this share the slowest stage takes less time, by counted FLOPs
};

/// A move that gains less is not worth a new start.
inline constexpr double kLeastGain = 0.03;

/// `job`: at the width of the attempt, with its stage_layers. nullopt: no other layers make the slowest stage
/// faster by kLeastGain, or they need more memory of a rank than `room` and than one takes now, or the spec
/// refuses them.
///   room  bytes that a rank may take; 0: not known
std::optional<StageBalance> balance_for(const ParsedJob& job, const SlowShare& slow, uint64_t room);

}  // namespace trainctl
