// Which links between ranks are slow, by the waits of a trace. A rank that is late is waited for and does not
// wait itself; where a message takes long, both of its ranks wait, each for the other, at the same time. So
// that time is the link's, whatever held up either rank before, and a slow link is found also among the ranks
// of a data-parallel group, who all wait alike in a whole step. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/observe/trace/rank_trace.h"

namespace trainctl::trace {

/// Two ranks that waited for each other longer than other pairs that do the same.
struct SlowLink {
  int first = 0, second = 0;            ///< ranks of the run, first < second
  double wait_s = 0;                    ///< of a step, the median over the steps
  double usual_s = 0;                   ///< the median of the pairs that it is compared with
  double share = 0;                     ///< of a step, by which it is longer
  std::string first_node, second_node;  ///< "": not known
  std::string text() const;             ///< one sentence, without a full stop
};

/// A pair is compared with those of all groups of its kind that lie as far apart: their messages have the same
/// size. Fewer than three of them say nothing. Those that are slowest come first. Nothing is found of ranks on
/// one node, whose messages are copies in memory and wait for a busy core, nor of ranks on GPUs, which do not
/// wait on the host.
std::vector<SlowLink> slow_links(const std::vector<RankTrace>& ranks);

/// What is longer by less than this share of a step, or by fewer deviations over the pairs, or is not twice
/// as long, is no trouble.
inline constexpr double kLeastLinkShare = 0.05, kLinkDeviations = 5, kLeastTimesUsual = 2;

}  // namespace trainctl::trace
