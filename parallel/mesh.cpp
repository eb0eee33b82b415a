#include "parallel/mesh.h"

#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

void ensure_shape(const MeshShape& shape) {
  ENSURE(shape.tp > 0 && shape.cp > 0 && shape.dp > 0 && shape.pp > 0, "mesh tp {} cp {} dp {} pp {}",
         shape.tp, shape.cp, shape.dp, shape.pp);
}

/// Size of the axis, and the distance in rank between its neighbours.
struct AxisStep {
  int size = 1, stride = 1;
};

AxisStep step_of(const MeshShape& shape, Axis axis) {
  switch (axis) {
    case Axis::tp: return {shape.tp, 1};
    case Axis::cp: return {shape.cp, shape.tp};
    case Axis::dp: return {shape.dp, shape.tp * shape.cp};
    case Axis::pp: return {shape.pp, shape.tp * shape.cp * shape.dp};
  }
  ENSURE(false, "axis {}", static_cast<int>(axis));
}

}  // namespace

MeshPosition position_of(const MeshShape& shape, int rank) {
  ensure_shape(shape);
  ENSURE(rank >= 0 && rank < shape.world_size(), "rank {} of {}", rank, shape.world_size());
  MeshPosition position;
  position.tp = rank % shape.tp;
  rank /= shape.tp;
  position.cp = rank % shape.cp;
  rank /= shape.cp;
  position.dp = rank % shape.dp;
  position.pp = rank / shape.dp;
  return position;
}

int rank_of(const MeshShape& shape, const MeshPosition& position) {
  ensure_shape(shape);
  const auto inside = [](int coordinate, int size) { return coordinate >= 0 && coordinate < size; };
  ENSURE(inside(position.tp, shape.tp) && inside(position.cp, shape.cp) && inside(position.dp, shape.dp) &&
             inside(position.pp, shape.pp),
         "position tp {} cp {} dp {} pp {}", position.tp, position.cp, position.dp, position.pp);
  return position.tp + shape.tp * (position.cp + shape.cp * (position.dp + shape.dp * position.pp));
}

std::vector<int> group_of(const MeshShape& shape, int rank, Axis axis) {
  ensure_shape(shape);
  ENSURE(rank >= 0 && rank < shape.world_size(), "rank {} of {}", rank, shape.world_size());
  const auto [size, stride] = step_of(shape, axis);
  const int first = rank - rank / stride % size * stride;
  std::vector<int> group;
  group.reserve(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) group.push_back(first + i * stride);
  return group;
}

MeshGroup mesh_group(const MeshShape& shape, const MeshPosition& at, Axis axis) {
  MeshPosition first = at;
  switch (axis) {
    case Axis::tp: first.tp = 0; return {axis, shape.tp, at.tp, rank_of(shape, first), 1};
    case Axis::cp: first.cp = 0; return {axis, shape.cp, at.cp, rank_of(shape, first), shape.tp};
    case Axis::dp: first.dp = 0; return {axis, shape.dp, at.dp, rank_of(shape, first), shape.tp * shape.cp};
    case Axis::pp:
      first.pp = 0;
      return {axis, shape.pp, at.pp, rank_of(shape, first), shape.tp * shape.cp * shape.dp};
  }
  ENSURE(false, "axis {}", int(axis));
}

}  // namespace trainctl::parallel
