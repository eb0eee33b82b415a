// Makes one trace of the recordings of several ranks. Pure.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/observe/trace/chrome_trace.h"
#include "runtime/observe/trace/peer_times.h"
#include "runtime/run/record/trace_request.h"

namespace trainctl::trace {

struct MergeInput {
  std::string run_id;
  TraceAnswer answer;  ///< of the supervisor: nodes and clocks
  int64_t requested_steps = 0;
  std::vector<Recording> recordings;  ///< in the order of ranks
  std::vector<std::string> events;    ///< lines of events.jsonl
};

/// What the command reports of a trace.
struct TraceSummary {
  std::string run_id;
  uint64_t epoch = 0;
  int64_t first_step = 0, last_step = -1, requested_steps = 0;
  std::vector<int> ranks;
  int of_ranks = 0;
  size_t spans = 0, flows = 0;
  uint64_t overwritten = 0;        ///< spans for which a rank had no room
  double alignment_error_s = 0;    ///< the most by which the times of two ranks may be apart; 0 on one node
  std::vector<PeerTime> communication;  ///< with each kind of peers
  std::vector<ActionTime> actions;      ///< what they computed in each kind of action
  std::vector<std::string> notes;  ///< sentences
  /// A JSON object, of runtime/observe/schemas/trace.schema.json without v and kind. `file`: the path of the
  /// trace; `bytes`: its size.
  std::string to_json(const std::string& file, uint64_t bytes) const;
};

struct Merged {
  Trace trace;
  TraceSummary summary;
};
/// Error(kLauncher) if ranks are on several nodes, one of which did not answer the question for its clock.
Merged merge(MergeInput input);

}  // namespace trainctl::trace
