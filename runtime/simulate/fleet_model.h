// FleetModel: what fails on a fleet, how often, and what that does to a run. A fleet file
// (scripts/fleets/NAME.json) gives it; the known ones are part of the program.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/words.h"

namespace trainctl::simulate {

/// What a failure does to the run.
///   crash    a rank ends at once and says so
///   device   the same, and its device says that it is broken
///   hang     a rank goes on and no longer takes part: its peers give up
///   node     a node goes silent, with what is in its memory
///   silent   a rank computes wrong numbers, which are found later; the run goes back behind them
///   slow     a node computes more slowly for a while
///   storage  the shared storage does not answer for a while
///   planned  a person has the run save, end and begin again
enum class Effect { crash, device, hang, node, silent, slow, storage, planned };

/// What the number of failures grows with: `run` is one of whatever size.
enum class Per { gpu, node, run };

struct FailureKind {
  std::string name, what;
  double events = 0;  ///< in FleetModel::observed
  Per per = Per::gpu;
  Effect effect = Effect::crash;
  int nodes = 1;        ///< neighbours that fail together, such as those below one switch
  double repair_s = 0;  ///< mean time until the place is sound again; 0: a new start is enough
  double slowdown = 0;  ///< of slow: mean share by which steps take longer
  double found_s = 0;   ///< of silent: mean time until the wrong numbers are found
};

struct FleetModel {
  std::string name, source;
  /// Where the events were counted.
  struct {
    double gpus = 1, gpus_per_node = 1, seconds = 1;
  } observed;
  std::vector<FailureKind> failures;
  double ending_s = 0;            ///< from the order to end all ranks until they are gone
  double deciding_s = 0;          ///< until the next attempt begins
  double starting_s = 0;          ///< from there until every rank is there,
  double starting_of_rank_s = 0;  ///< and so much more for each rank
  double person_s = 0;            ///< until a person has resumed a run that gave up

  /// Failures of that kind per second among so many GPUs and nodes.
  double rate_per_s(const FailureKind& kind, double gpus, double nodes) const;
};

std::vector<std::string> fleet_names();
/// The text of a known fleet's file; "" for another name.
std::string_view known_fleet_text(std::string_view name);

/// Reads a fleet file. Error(kUsage) with a line for each mistake, which names the file and the place in it.
FleetModel parse_fleet(std::string_view text, const std::string& file);

}  // namespace trainctl::simulate

namespace trainctl {

template <>
struct Words<simulate::Effect> {
  static constexpr std::string_view list[] = {"crash",  "device", "hang",    "node",
                                              "silent", "slow",   "storage", "planned"};
};
template <>
struct Words<simulate::Per> {
  static constexpr std::string_view list[] = {"gpu", "node", "run"};
};

}  // namespace trainctl
