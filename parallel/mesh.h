// The mesh: the position of each world rank on the axes tp, cp, dp, pp.
//
// Invariant: tp * cp * dp * pp == world_size. Rank order, fastest first: tp, cp, dp, pp, so that a tensor
// group is neighbours on one node. Pure arithmetic; safe from any thread.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trainctl::parallel {

enum class Axis : uint8_t { tp, cp, dp, pp };

/// Sizes of the axes, or a rank's position on them.
struct MeshShape {
  int tp = 1, cp = 1, dp = 1, pp = 1;
  int world_size() const { return tp * cp * dp * pp; }
};

struct MeshPosition {
  int tp = 0, cp = 0, dp = 0, pp = 0;
};

/// A set of axes along which parameters are shared, one bit each.
using AxisSet = uint32_t;
namespace axes {
inline constexpr AxisSet data = 1;
inline constexpr AxisSet tensor = 2;
/// The stages that each hold one use of a shared parameter: of a tied embedding, the first and the last.
inline constexpr AxisSet uses = 4;
inline constexpr AxisSet context = 8;  ///< of no parameter yet
/// The ranks of a data-parallel group that hold the same experts.
inline constexpr AxisSet expert_data = 16;
}  // namespace axes

/// What an axis is. Code for all axes goes over these rows.
struct AxisRow {
  Axis axis;
  std::string_view word;        ///< in names of groups: "tp"
  std::string_view group;       ///< in messages: "tensor"
  std::string_view coordinate;  ///< of a rank, in names of groups of other axes: "stage 3"
  int MeshShape::*size;
  int MeshPosition::*at;
  AxisSet shared;  ///< its bit, where ranks along it hold the same parameters or parts of them; else 0
  bool has_lanes = false;      ///< its ranks compute different lanes; see AxisLine
  bool moves_tensors = false;  ///< its group sends tensors; else numbers of the host, and its edges tensors
  /// A group of the next axis consists of whole groups of this one: context ranks have parts of the same
  /// sequences, and share parameters as data-parallel ranks do.
  bool is_within_next = false;
};
/// In rank order, fastest first.
inline constexpr AxisRow kAxes[] = {
    {Axis::tp, "tp", "tensor", "tp", &MeshShape::tp, &MeshPosition::tp, axes::tensor, false, true},
    {Axis::cp, "cp", "context", "cp", &MeshShape::cp, &MeshPosition::cp, 0, false, true, true},
    {Axis::dp, "dp", "data-parallel", "dp", &MeshShape::dp, &MeshPosition::dp, axes::data, true, true},
    {Axis::pp, "pp", "pipeline", "stage", &MeshShape::pp, &MeshPosition::pp, 0, false, false}};
constexpr const AxisRow& row_of(Axis axis) { return kAxes[size_t(axis)]; }

/// A value for each axis.
template <typename T>
class PerAxis {
 public:
  T& operator[](Axis axis) { return values_[size_t(axis)]; }
  const T& operator[](Axis axis) const { return values_[size_t(axis)]; }

 private:
  std::array<T, std::size(kAxes)> values_{};
};

/// Position of `rank` in [0, world_size).
MeshPosition position_of(const MeshShape& shape, int rank);
int rank_of(const MeshShape& shape, const MeshPosition& position);

/// The ranks that share every coordinate but `axis` (and the axes within it) with `rank`, in rank order: so
/// its index in the result is its coordinate on the axis, of dp that of dp * cp + cp.
std::vector<int> group_of(const MeshShape& shape, int rank, Axis axis);

/// One rank's group along an axis, without the list of its members.
struct MeshGroup {
  int size = 1, rank = 0;     ///< rank: of this one within the group
  int first = 0, stride = 1;  ///< world ranks of the group: first, first + stride, ...
  std::vector<int> members() const;
};
MeshGroup mesh_group(const MeshShape& shape, const MeshPosition& at, Axis axis);
/// Along all axes from `first` to `last`, the position on the first one varying fastest.
MeshGroup mesh_group(const MeshShape& shape, const MeshPosition& at, Axis first, Axis last);

/// The parts of a group with experts: `ranks` neighbours share them, and others hold the same ones.
MeshGroup expert_group(const MeshGroup& all, int ranks);
MeshGroup expert_data_group(const MeshGroup& all, int ranks);

}  // namespace trainctl::parallel
