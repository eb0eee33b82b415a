// Rotary positions: the angles by which queries and keys turn.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/spec/fields/model_spec.h"

namespace trainctl {

/// Of one kind of layer.
struct Rotary {
  double theta = 10000;
  int64_t channels = 0;  ///< of a head, that turn
  bool interleaved = false;
  RopeScalingSpec scaling = {};  ///< with original_max_seq_len where its rule needs one
  bool operator==(const Rotary&) const = default;
};

/// [seq_len, channels]: of each position the cosines of channels / 2 pairs, then their sines. Computed in
/// float64. Sources of the rules: arXiv:2306.15595 (linear), arXiv:2407.21783 and the code released with it
/// (llama3), arXiv:2309.00071 (yarn).
std::vector<float> rotary_table(const Rotary& rotary, int64_t seq_len);

}  // namespace trainctl
