// FleetNodes: the nodes of a simulated run, which is at which place of the mesh, which is out until when, which
// fails at every start. Pure.
#pragma once
#include <functional>
#include <map>
#include <queue>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/simulate/run_model.h"

namespace trainctl::simulate {

/// A time that does not come.
inline constexpr Ns kNeverNs = INT64_MAX / 4;

/// The name of the node that all places are on which nothing fails.
inline constexpr const char* kSound = "sound";

class FleetNodes {
 public:
  /// `joins`: places on which nothing fails are one node, and spares that cannot be needed are left out.
  FleetNodes(const RunModel& run, const FleetModel& fleet, std::span<const Failure> failures, bool joins);
  /// In the order of Recovery.
  const std::vector<std::string>& names() const { return names_; }
  int slots(const std::string& name) const { return name == kSound ? sound_ * slots_ : slots_; }
  /// The nodes of an attempt, in the order of its ranks.
  void place(const std::vector<std::string>& members);
  /// The node that a failure at that place of the mesh hits; "": none.
  std::string at(int place) const;
  bool is_out(const std::string& name) const { return out_.contains(name); }
  void take_out(const std::string& name, Ns now, Ns until);
  Ns next_return() const { return returns_.empty() ? kNeverNs : returns_.top().first; }
  /// The node of next_return() is sound again.
  std::string take_return(Ns now);
  const std::vector<std::pair<Ns, int>>& history() const { return history_; }

  /// A place that is broken but lets its node run: `kind` fails there again at every start.
  struct Fault {
    int kind = 0;
    Ns repair = 0;
  };
  std::map<std::string, Fault> faulty;

 private:
  int sound_ = 0, slots_ = 1;
  std::vector<int> index_;  ///< of each place among those that are not sound; -1: it is sound
  std::vector<std::string> names_, members_;
  std::unordered_map<std::string, Ns> out_;
  using Return = std::pair<Ns, std::string>;
  std::priority_queue<Return, std::vector<Return>, std::greater<>> returns_;
  std::vector<std::pair<Ns, int>> history_;
};

}  // namespace trainctl::simulate
