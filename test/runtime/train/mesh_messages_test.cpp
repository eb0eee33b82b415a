// Goal: what a rank sends to start, and to end a step, does not grow with the number of ranks but by its
// logarithm. Method: ranks of meshes of up to 4,096 ranks make their groups, meet, add the sums of a step and
// gather the times of all ranks on the tally twin, which moves nothing and counts. No model is computed.
#include <bit>
#include <catch2/catch.hpp>

#include "parallel/exact_sum.h"
#include "parallel/tally.h"
#include "runtime/train/mesh_communicators.h"

namespace trainctl::test {
namespace {

using parallel::MeshShape, parallel::TrafficGroup, parallel::TrafficTally, parallel::Way;

struct Sent {
  uint64_t messages = 0, bytes = 0;
};

Sent sent_in(const TrafficTally& tally) {
  Sent sent;
  for (const auto& [key, count] : tally.messages)
    if (key.way == Way::send) sent.messages += count, sent.bytes += count * key.bytes;
  return sent;
}

uint64_t rounds(int size) { return uint64_t(std::bit_width(unsigned(size - 1))); }
/// Rounds of a sum or a barrier along all axes: one more where a width is no power of two.
uint64_t rounds(const MeshShape& mesh) {
  uint64_t sum = 0;
  for (const int size : {mesh.tp, mesh.dp, mesh.pp})
    sum += rounds(size) + !std::has_single_bit(unsigned(size));
  return sum;
}

}  // namespace

TEST_CASE("the messages of a rank at the start and at the end of a step", "[scale]") {
  for (const MeshShape mesh : {MeshShape{.tp = 2, .cp = 1, .dp = 4, .pp = 2},
                               {.tp = 8, .cp = 1, .dp = 8, .pp = 8},
                               {.tp = 8, .cp = 1, .dp = 43, .pp = 3},
                               {.tp = 8, .cp = 1, .dp = 64, .pp = 8},
                               {.tp = 1, .cp = 1, .dp = 4096, .pp = 1}})
    for (int rank = 0; rank < mesh.world_size(); rank += 1 + rank % 7) {
      CAPTURE(mesh.tp, mesh.dp, mesh.pp, rank);
      TrafficTally tally;
      const auto world =
          parallel::make_tally_communicator(TrafficGroup::other, rank, mesh.world_size(), tally);
      const MeshCommunicators comms =
          make_mesh_communicators(rank_groups(mesh, 2, true, parallel::position_of(mesh, rank)), *world);
      REQUIRE(sent_in(tally).messages == 0);  // groups are arithmetic

      ExactSum sum;
      comms.sum(sum);
      REQUIRE(sent_in(tally).messages <= rounds(mesh));
      REQUIRE(sent_in(tally).bytes <= rounds(mesh) * sizeof(ExactSum));
      tally.clear();

      comms.is_any(false);
      parallel::barrier(*world);
      REQUIRE(sent_in(tally).messages <= rounds(mesh) + rounds(mesh.world_size()) + 1);
      tally.clear();

      gather_times(mesh, comms, {});
      REQUIRE(sent_in(tally).messages <= 3);
    }
}

}  // namespace trainctl::test
