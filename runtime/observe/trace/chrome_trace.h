// Writes a trace in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open: a process
// for each rank, a thread for each lane, arrows from sends to receives, counters of memory, and the events of
// the run as instants. Times are in microseconds since the first span. Pure; the same trace gives the same
// text.
// Source: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/observe/trace/rank_trace.h"

namespace trainctl::trace {

/// Something that happened in the run, by the common clock.
struct RunEvent {
  int64_t at_ns = 0;
  std::string name;
  Json fields;
};

struct Trace {
  std::vector<RankTrace> ranks;  ///< by rank
  Flows flows;
  std::vector<RunEvent> events;        ///< by time
  OrderedJson description;  ///< becomes "otherData"
};

/// Gives the text to `sink` in pieces.
void write_chrome_trace(const Trace& trace, const std::function<void(std::string_view)>& sink);

}  // namespace trainctl::trace
