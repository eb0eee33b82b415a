// A hook for tests of supervision: in each of the first epochs, one rank sends itself SIGSTOP at a chosen
// point of the run. So a test reaches that point reliably. The hook is off unless the variable is in the
// rank's environment.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/activity.h"

namespace trainctl {

/// TRAINCTL_STOP_AT=RANK:PHASE[:STEP[:WAIT]], e.g. "1:loading", "0:forward:3", "2:forward:3:tp group" or
/// "1:starting::MPI_Init". Several, with ";" between them, are for the epochs 1, 2 and so on; an empty one
/// stops no rank.
inline constexpr const char* kStopAtVariable = "TRAINCTL_STOP_AT";
inline constexpr const char* kInProgress = "progress";

struct StopAt {
  int rank = -1;
  RunPhase phase = RunPhase::starting;
  int64_t step = -1;          ///< the first step at which it matches; -1: any
  /// "": matches while the rank computes. "progress": matches while it computes and has finished a part of
  /// the phase, for example has written a part of its shard. Otherwise: matches while it waits in a
  /// communicator or operation whose name begins with this text.
  std::string wait;

  /// What `text` says of that epoch; nullopt: nothing. Error(kUsage) if that does not have the form above.
  static std::optional<StopAt> parse(const std::string& text, uint64_t epoch);
  bool matches(const Activity& activity) const;
};

/// The parts of what the variable of such a hook says of an epoch: RANK:PHASE[:STEP[:REST]].
struct HookText {
  std::optional<int64_t> rank, step;  ///< nullopt: no number; step -1: none is given
  std::string_view phase, rest;       ///< of the text
  static std::optional<HookText> of(std::string_view text, uint64_t epoch);  ///< nullopt: it says nothing
};

}  // namespace trainctl
