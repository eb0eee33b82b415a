#include "runtime/train/control/step_spans.h"

namespace trainctl {

using parallel::Act;

Span span_of(const parallel::Action& a, int64_t step, int pp, const parallel::VirtualStages& stages) {
  Span span{.step = step, .kind = SpanKind::action, .detail = uint8_t(a.act)};
  if (a.act == Act::sum || a.act == Act::step) return span;  // of the whole rank
  span.virtual_stage = int16_t(stages.global_of(pp, a.virtual_stage));
  span.part = int16_t(a.part);
  const bool of_weights = a.act == Act::wait_weights || a.act == Act::release_weights || a.act == Act::gather;
  if (!of_weights) span.micro_batch = a.micro_batch;
  return span;
}

void record_reading(SpanRecorder& spans, double begin_s, double end_s) {
  if (!spans.on()) return;
  spans.record({.begin_ns = SpanRecorder::ns_of(begin_s),
                .end_ns = SpanRecorder::ns_of(end_s),
                .kind = SpanKind::data});
}

Recording recording_of(const parallel::MeshShape& mesh, const parallel::MeshPosition& at) {
  Recording who;
  who.rank = parallel::rank_of(mesh, at);
  who.ranks = mesh.world_size();
  who.pp = at.pp;
  who.dp = at.dp * mesh.cp + at.cp;  // its place among the ranks that share its parameters
  who.tp = at.tp;
  who.pp_size = mesh.pp;
  who.dp_size = mesh.dp * mesh.cp;
  who.tp_size = mesh.tp;
  return who;
}

}  // namespace trainctl
