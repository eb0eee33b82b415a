#include "runtime/simulate/fleet_nodes.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace trainctl::simulate {

FleetNodes::FleetNodes(const RunModel& run, const FleetModel& fleet, std::span<const Failure> failures,
                       bool joins)
    : slots_(run.slots), index_(size_t(run.nodes), joins ? -1 : 0), history_{{0, 0}} {
  int64_t most_out = 0;
  for (const Failure& failure : failures) most_out += fleet.failures[size_t(failure.kind)].nodes;
  for (const Failure& failure : failures)
    for (int i = 0; i < fleet.failures[size_t(failure.kind)].nodes; ++i)
      index_[size_t((failure.place + i) % run.nodes)] = 0;
  sound_ = int(std::count(index_.begin(), index_.end(), -1));
  for (int place = 0; place < run.nodes; ++place) {
    if (index_[size_t(place)] < 0) continue;
    index_[size_t(place)] = int(names_.size());
    names_.push_back(fmt::format("n{}", place));
  }
  // Last of the mesh: a smaller width leaves out nodes at its end, which are sound ones almost always.
  if (sound_ > 0) names_.push_back(kSound);
  // The spares are used in their order, each for a node that a failure took.
  const int used = joins ? int(std::min<int64_t>(run.spares, most_out)) : run.spares;
  for (int i = 0; i < used; ++i) names_.push_back(fmt::format("s{}", i));
}

void FleetNodes::place(const std::vector<std::string>& members) {
  members_.clear();
  for (const std::string& name : members)
    if (name != kSound) members_.push_back(name);
}

std::string FleetNodes::at(int place) const {
  const int index = index_[size_t(place)];
  ENSURE(index >= 0, "place {}", place);
  // Of fewer members each has more places: a failure hits one of them.
  return members_.empty() ? "" : members_[size_t(index) % members_.size()];
}

void FleetNodes::take_out(const std::string& name, Ns now, Ns until) {
  ENSURE(name != kSound && !is_out(name), "{}", name);
  out_.emplace(name, until);
  returns_.emplace(until, name);
  history_.emplace_back(now, int(out_.size()));
}

std::string FleetNodes::take_return(Ns now) {
  const std::string name = returns_.top().second;
  returns_.pop();
  out_.erase(name);
  faulty.erase(name);
  history_.emplace_back(now, int(out_.size()));
  return name;
}

}  // namespace trainctl::simulate
