#include "parallel/mesh.h"

#include "runtime/base/error.h"

namespace trainctl::parallel {
namespace {

void ensure_shape(const MeshShape& shape) {
  for (const AxisRow& row : kAxes) ENSURE(shape.*row.size > 0, "mesh {} {}", row.word, shape.*row.size);
}

}  // namespace

MeshPosition position_of(const MeshShape& shape, int rank) {
  ensure_shape(shape);
  ENSURE(rank >= 0 && rank < shape.world_size(), "rank {} of {}", rank, shape.world_size());
  MeshPosition position;
  for (const AxisRow& row : kAxes) {
    position.*row.at = rank % (shape.*row.size);
    rank /= shape.*row.size;
  }
  return position;
}

int rank_of(const MeshShape& shape, const MeshPosition& position) {
  ensure_shape(shape);
  int rank = 0, stride = 1;
  for (const AxisRow& row : kAxes) {
    const int at = position.*row.at;
    ENSURE(at >= 0 && at < shape.*row.size, "position {} {} of {}", row.word, at, shape.*row.size);
    rank += at * stride;
    stride *= shape.*row.size;
  }
  return rank;
}

MeshGroup mesh_group(const MeshShape& shape, const MeshPosition& at, Axis axis) {
  const AxisRow* row = &row_of(axis);
  while (row != kAxes && row[-1].is_within_next) --row;
  return mesh_group(shape, at, row->axis, axis);
}

MeshGroup mesh_group(const MeshShape& shape, const MeshPosition& at, Axis first_axis, Axis last_axis) {
  const AxisRow* row = &row_of(first_axis);
  const AxisRow* const last = &row_of(last_axis);
  MeshGroup group;
  for (const AxisRow* outside = kAxes; outside != row; ++outside) group.stride *= shape.*outside->size;
  MeshPosition first = at;
  for (; row <= last; ++row) {
    group.rank += at.*row->at * group.size;
    group.size *= shape.*row->size;
    first.*row->at = 0;
  }
  group.first = rank_of(shape, first);
  return group;
}

MeshGroup expert_group(const MeshGroup& all, int ranks) {
  ENSURE(ranks > 0 && all.size % ranks == 0, "experts on {} of {} ranks", ranks, all.size);
  const int at = all.rank % ranks;
  return {ranks, at, all.first + (all.rank - at) * all.stride, all.stride};
}

MeshGroup expert_data_group(const MeshGroup& all, int ranks) {
  ENSURE(ranks > 0 && all.size % ranks == 0, "experts on {} of {} ranks", ranks, all.size);
  const int at = all.rank % ranks;
  return {all.size / ranks, all.rank / ranks, all.first + at * all.stride, all.stride * ranks};
}

std::vector<int> MeshGroup::members() const {
  std::vector<int> ranks(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) ranks[size_t(i)] = first + i * stride;
  return ranks;
}

std::vector<int> group_of(const MeshShape& shape, int rank, Axis axis) {
  return mesh_group(shape, position_of(shape, rank), axis).members();
}

}  // namespace trainctl::parallel
