// Goal: rank order is tp, cp, dp, pp (fastest first) and groups are what the rest of the program takes them
// for: a data-parallel group consists of whole context groups. Method: exhaustive over every mesh with axes
// 1..4; the expected rank comes from counting in nested loops.
#include "parallel/mesh.h"

#include <catch2/catch.hpp>
#include <set>

namespace trainctl::parallel {
namespace {

int coordinate(const MeshPosition& position, Axis axis) {
  switch (axis) {
    case Axis::tp: return position.tp;
    case Axis::cp: return position.cp;
    case Axis::dp: return position.dp;
    case Axis::pp: return position.pp;
  }
  return -1;
}

/// Its place in the group along `axis`.
int place_in(const MeshShape& shape, const MeshPosition& position, Axis axis) {
  return axis == Axis::dp ? position.dp * shape.cp + position.cp : coordinate(position, axis);
}

template <typename Visit>
void for_each_mesh(Visit visit) {
  for (int tp = 1; tp <= 4; ++tp)
    for (int cp = 1; cp <= 4; ++cp)
      for (int dp = 1; dp <= 4; ++dp)
        for (int pp = 1; pp <= 4; ++pp) visit(MeshShape{tp, cp, dp, pp});
}

TEST_CASE("ranks count through tp first, then cp, dp, pp") {
  for_each_mesh([](const MeshShape& shape) {
    int rank = 0;
    bool same = true;
    for (int pp = 0; pp < shape.pp; ++pp)
      for (int dp = 0; dp < shape.dp; ++dp)
        for (int cp = 0; cp < shape.cp; ++cp)
          for (int tp = 0; tp < shape.tp; ++tp, ++rank) {
            const MeshPosition position = position_of(shape, rank);
            same = same && position.tp == tp && position.cp == cp && position.dp == dp && position.pp == pp;
            same = same && rank_of(shape, position) == rank;
          }
    REQUIRE(same);
    REQUIRE(rank == shape.world_size());
  });
}

TEST_CASE("a group varies one coordinate, dp that of cp too, in order, and an axis' groups cut the world") {
  for_each_mesh([](const MeshShape& shape) {
    for (Axis axis : {Axis::tp, Axis::cp, Axis::dp, Axis::pp}) {
      bool right = true;
      std::set<std::vector<int>> groups;
      for (int rank = 0; rank < shape.world_size(); ++rank) {
        const std::vector<int> group = group_of(shape, rank, axis);
        const MeshPosition own = position_of(shape, rank);
        right = right && group.at(static_cast<size_t>(place_in(shape, own, axis))) == rank;
        for (size_t i = 0; i < group.size(); ++i) {
          const MeshPosition peer = position_of(shape, group[i]);
          for (Axis other : {Axis::tp, Axis::cp, Axis::dp, Axis::pp}) {
            const bool varies = other == axis || (axis == Axis::dp && other == Axis::cp);
            right = right && (varies || coordinate(peer, other) == coordinate(own, other));
          }
          right = right && place_in(shape, peer, axis) == static_cast<int>(i);
        }
        groups.insert(group);
      }
      size_t members = 0;
      for (const auto& group : groups) members += group.size();
      REQUIRE(right);
      REQUIRE(members == static_cast<size_t>(shape.world_size()));
    }
  });
}

TEST_CASE("a tensor group is neighbours") {
  CHECK(group_of({4, 1, 2, 2}, 6, Axis::tp) == std::vector<int>{4, 5, 6, 7});
  CHECK(group_of({4, 1, 2, 2}, 6, Axis::dp) == std::vector<int>{2, 6});
  CHECK(group_of({4, 1, 2, 2}, 6, Axis::pp) == std::vector<int>{6, 14});
  CHECK(group_of({4, 1, 2, 2}, 6, Axis::cp) == std::vector<int>{6});
}

TEST_CASE("a data-parallel group consists of whole context groups") {
  CHECK(group_of({2, 2, 2, 2}, 5, Axis::cp) == std::vector<int>{5, 7});
  CHECK(group_of({2, 2, 2, 2}, 5, Axis::dp) == std::vector<int>{1, 3, 5, 7});
  CHECK(group_of({2, 2, 2, 2}, 5, Axis::pp) == std::vector<int>{5, 13});
  const MeshGroup group = mesh_group({2, 3, 2, 2}, {.tp = 1, .cp = 2, .dp = 1, .pp = 1}, Axis::dp);
  CHECK(group.size == 6);
  CHECK(group.rank == 5);
  CHECK(group.stride == 2);
}

TEST_CASE(
    "tensor, context and data-parallel ranks of a stage are one run, of which neighbours share experts") {
  const MeshShape shape{2, 2, 2, 2};
  const MeshGroup stage = mesh_group(shape, position_of(shape, 13), Axis::tp, Axis::dp);
  CHECK(stage.members() == std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(stage.rank == 5);
  CHECK(expert_group(stage, 4).members() == std::vector<int>{12, 13, 14, 15});
  CHECK(expert_group(stage, 4).rank == 1);
  CHECK(expert_data_group(stage, 4).members() == std::vector<int>{9, 13});
  CHECK(expert_data_group(stage, 4).rank == 1);
}

}  // namespace
}  // namespace trainctl::parallel
