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

MeshCommunicators split_mesh(const RankGroups& groups, Communicator& world, bool tied) {
  const auto& [tp, dp, pp] = std::tie(groups.tp, groups.dp, groups.pp);
  const auto along = [&](const parallel::MeshGroup& g, const std::string& name,
                         parallel::Traffic traffic = parallel::Traffic::bulk) {
    return world.split_for(traffic, g.first, g.rank, name);
  };
  MeshCommunicators c;
  c.tp = along(tp, fmt::format("tp group of stage {}, dp {}", pp.rank, dp.rank));
  c.dp = along(dp, fmt::format("dp group of stage {}, tp {}", pp.rank, tp.rank));
  // Numbers on the host, and the edges that are split from it.
  c.pp = along(pp, fmt::format("pp group of dp {}, tp {}", dp.rank, tp.rank), parallel::Traffic::none);
  if (tied && pp.size > 1)
    c.tied = world.split(groups.tied_peer ? pp.first : -1, pp.rank,
                         fmt::format("tied embedding of dp {}, tp {}", dp.rank, tp.rank));
  c.edges = make_edges(*c.pp, groups.ring);
  return c;
}

std::vector<RankTimes> gather_times(const parallel::MeshShape& shape, const MeshCommunicators& comms,
                                    const RankTimes& own) {
  ENSURE(shape.cp == 1, "cp = {}", shape.cp);  // the order of ranks: tp, dp, pp
  std::vector<RankTimes> gathered{own};
  for (Communicator* axis : {comms.tp.get(), comms.dp.get(), comms.pp.get()}) {
    std::vector<RankTimes> parts(axis->rank() == 0 ? gathered.size() * size_t(axis->size()) : 0);
    parallel::gather(*axis, 0, gathered.data(), parts.data(), gathered.size() * sizeof(RankTimes), 7);
    if (parts.empty()) return {};
    gathered = std::move(parts);
  }
  return gathered;
}

}  // namespace trainctl
