// How long the ranks of a trace waited for which peers, what they exchanged with them, and how long they computed
// in each kind of instruction. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/observe/trace/rank_trace.h"

namespace trainctl::trace {

/// What the peers of a communicator share with a rank, by its name: "experts", "gradients of experts",
/// "context", "tensor", "data", "pipeline", "tied embedding", or "other".
std::string_view peers_of_group(std::string_view group);

/// Of one kind of peers, as means over the ranks of a trace and its steps.
struct PeerTime {
  std::string peers;      ///< peers_of_group
  double wait_s = 0;      ///< in which a rank waited for them
  double exchange_s = 0;  ///< from the start of an exchange until it was waited for; exchanges overlap
  double sent_bytes = 0;
};
/// Those that waited longest first. `steps`: of the trace.
std::vector<PeerTime> peer_times(const std::vector<RankTrace>& ranks, int64_t steps);

/// Of one kind of action of the step program, as a mean over the ranks of a trace and its steps.
struct ActionTime {
  std::string action;    ///< "backward_weight"
  double compute_s = 0;  ///< without the waits within
};
/// In the order of parallel::Act; those that take time. Empty for ranks on GPUs, whose spans are of the host.
std::vector<ActionTime> action_times(const std::vector<RankTrace>& ranks, int64_t steps);

}  // namespace trainctl::trace
