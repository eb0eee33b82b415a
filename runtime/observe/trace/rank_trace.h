// RankTrace: the recording of one rank, with its times on the clock that all ranks of the trace share.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/observe/trace/lanes.h"
#include "runtime/spans/clock_alignment.h"
#include "runtime/spans/recording.h"

namespace trainctl::trace {

struct RankTrace {
  Recording recording;
  std::string node;
  std::vector<PlacedSpan> spans;     ///< by lane and begin, without the counters
  std::vector<PlacedSpan> counters;  ///< SpanKind::memory, by time
};

/// Aligns the times and assigns the lanes. Pure.
RankTrace place(Recording recording, std::string node, const ClockAlignment& clock);

/// The steps of which every rank has all spans: all, unless the ring of one was full. `last` < `first`: none.
struct StepRange {
  int64_t first = 0, last = -1;
  int64_t count() const { return last < first ? 0 : last - first + 1; }
};
StepRange whole_steps(const std::vector<RankTrace>& ranks);
/// Removes what a rank did before its first whole step. Does nothing if no step is whole.
void keep_whole_steps(std::vector<RankTrace>& ranks);

/// The earliest time of all ranks; 0 if there are no spans.
int64_t origin_ns(const std::vector<RankTrace>& ranks);

/// A message of the pipeline: from the slice that sends it to the one that waited for it.
struct Flow {
  bool is_activation = true;
  size_t from = 0, to = 0;            ///< indices of ranks in the trace
  size_t from_span = 0, to_span = 0;  ///< in their `spans`
};
struct Flows {
  std::vector<Flow> flows;  ///< by step, direction and micro-batch
  size_t unpaired = 0;      ///< sends and waits whose other end is not in the trace
  size_t backwards = 0;     ///< pairs that the clocks put in the wrong order; they are not in `flows`
};
/// Pairs each send of an activation or gradient with the wait of the rank that received it, by step, place in
/// the mesh, virtual stage and micro-batch. Pure.
Flows pair_flows(const std::vector<RankTrace>& ranks);

}  // namespace trainctl::trace
