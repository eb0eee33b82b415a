#include "runtime/train/mesh_communicators.h"

#include <fmt/format.h>

#include <tuple>

#include "runtime/base/error.h"

namespace trainctl {

using parallel::Communicator;

void MeshCommunicators::set_deadline(double seconds) const {
  for_each([seconds](Communicator& c) { c.set_deadline(seconds); });
}

void MeshCommunicators::check() const {
  for_each([](Communicator& c) { c.check(); });
}

double MeshCommunicators::waited_s() const {
  double seconds = 0;
  for_each([&](const Communicator& c) { seconds += c.waited_s(); });
  return seconds;
}

namespace {

/// The numbers of a rank's groups (Subgroup::number).
enum : int { kTensor = 1, kData, kPipe, kTiedEmbedding, kFirstEdge };

std::vector<int> members_of(const parallel::MeshGroup& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size));
  for (int i = 0; i < group.size; ++i) ranks[size_t(i)] = group.first + i * group.stride;
  return ranks;
}

}  // namespace

MeshCommunicators make_mesh_communicators(const RankGroups& groups, Communicator& world) {
  const auto& [tp, dp, pp] = std::tie(groups.tp, groups.dp, groups.pp);
  MeshCommunicators c;
  c.tp = world.subgroup({.members = members_of(tp),
                         .number = kTensor,
                         .name = fmt::format("tp group of stage {}, dp {}", pp.rank, dp.rank),
                         .connects_later = true});
  c.dp = world.subgroup({.members = members_of(dp),
                         .number = kData,
                         .name = fmt::format("dp group of stage {}, tp {}", pp.rank, tp.rank),
                         .connects_later = true});
  // Numbers on the host, and the edges that are made from it.
  c.pp = world.subgroup({.members = members_of(pp),
                         .number = kPipe,
                         .name = fmt::format("pp group of dp {}, tp {}", dp.rank, tp.rank),
                         .traffic = parallel::Traffic::none});
  if (groups.tied_peer)
    c.tied = world.subgroup({.members = {pp.first, pp.first + (pp.size - 1) * pp.stride},
                             .number = kTiedEmbedding,
                             .name = fmt::format("tied embedding of dp {}, tp {}", dp.rank, tp.rank),
                             .connects_later = true});
  c.edges = make_edges(*c.pp, groups.ring, kFirstEdge);
  return c;
}

}  // namespace trainctl
