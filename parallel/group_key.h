// GroupKey: which parameters are sharded, reduced and gathered together, and by whom. It says over which axes
// a parameter is the same on every rank, and over which its gradients are parts of one sum. Everything that
// ShardedParams does with a parameter follows from its key and the lines of ranks along these axes, so a new
// axis (context or expert parallelism) is a bit and a line, no new case. Pure.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/state_rows.h"
#include "runtime/base/dtype.h"

namespace trainctl::parallel {

struct ParamUse;

/// The ranks along one axis through this rank.
struct AxisLine {
  AxisSet axis = axes::data;
  int size = 1, rank = 0;
  /// Its ranks compute different lanes: gradients are added along it in the order of the lanes' tree, and
  /// chunks are dealt out to its ranks. The first such line is the longest. Of a shorter one, neighbours of
  /// the first line have one rank together (LaneLine::sharing).
  bool has_lanes = false;
};
using AxisLines = std::vector<AxisLine>;
/// Along an axis that is not listed there is this rank alone.
AxisLine line_of(const AxisLines& lines, AxisSet axis);

/// What the chunks of a parameter are like.
enum class Form : uint8_t {
  cut_matrix,  ///< cut over the tensor axis
  cut_vector,  ///< cut, too, and in f32: small chunks, which do not go between large ones
  whole
};

struct GroupKey {
  AxisSet replicated = axes::data;  ///< over which the parameter is the same
  AxisSet partial = axes::data;     ///< over which gradients are parts of one sum
  Form form = Form::whole;
  int use = 0;               ///< the first use of the parameter is 0
  DType dtype = DType::f32;  ///< of compute copies
  StateRows states = kAdamW;
  auto operator<=>(const GroupKey&) const = default;

  /// The axis along which chunks are owned and gradients are added as the lanes' tree; 0: none has lanes.
  AxisSet lane_axis(const AxisLines& lines) const;
  /// The other axes of more than one rank over which the owners' sums are added, lowest bit first.
  std::vector<AxisSet> sum_axes(const AxisLines& lines) const;
  /// Whether ranks have the same parameter and the same sums without adding them: the sums must then be made
  /// in one order on all of them.
  bool repeats_sums(const AxisLines& lines) const;
};
GroupKey key_of(const ParamUse& use);
std::string name_of(const GroupKey& key);  ///< "cut matrices"

}  // namespace trainctl::parallel
