// The spans of a training step that are of no phase: the actions of the step program, the batches that were
// read, the memory of the rank. And who a rank is, for its recordings.
#pragma once
#include <cstdint>

#include "parallel/mesh.h"
#include "parallel/step_program.h"
#include "runtime/spans/recorder.h"

namespace trainctl {

/// The span of an action.
///   pp, stages   the stage of the rank, of so many
Span span_of(const parallel::Action& action, int64_t step, int pp, const parallel::VirtualStages& stages);

/// Records that a batch was read between two monotonic times.
void record_reading(SpanRecorder& spans, double begin_s, double end_s);

/// Records that the rank holds so many bytes now. `bytes()` is called while a trace is on.
template <typename Bytes>
void record_memory(SpanRecorder& spans, Bytes bytes) {
  if (!spans.on()) return;
  const int64_t now_ns = spans.now_ns();
  spans.record({.begin_ns = now_ns, .end_ns = now_ns, .sent = bytes(), .kind = SpanKind::memory});
}

/// A recording of the rank at this position, without spans.
Recording recording_of(const parallel::MeshShape& mesh, const parallel::MeshPosition& at);

}  // namespace trainctl
