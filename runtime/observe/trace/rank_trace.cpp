#include "runtime/observe/trace/rank_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "parallel/step_program.h"

namespace trainctl::trace {

using parallel::Act;

namespace {

/// A message, as its sender and its receiver name it: the direction, the place of the pipeline in the mesh,
/// the virtual stage that receives, the micro-batch.
using MessageKey = std::tuple<int64_t, bool, int, int, int, int>;

struct MessageEnd {
  size_t rank, span;
};

std::optional<MessageKey> key_of(const Span& span, const Recording& of, bool sends) {
  if (span.kind != SpanKind::action) return std::nullopt;
  const Act act = Act(span.detail);
  const bool activation = act == (sends ? Act::send_activation : Act::wait_activation);
  if (!activation && act != (sends ? Act::send_gradient : Act::wait_gradient)) return std::nullopt;
  const int receives = span.virtual_stage + (!sends ? 0 : activation ? 1 : -1);
  return MessageKey{span.step, !activation, of.dp, of.tp, receives, span.micro_batch};
}

std::map<MessageKey, MessageEnd> ends_of(const std::vector<RankTrace>& ranks, bool sends) {
  std::map<MessageKey, MessageEnd> ends;
  for (size_t r = 0; r < ranks.size(); ++r)
    for (size_t s = 0; s < ranks[r].spans.size(); ++s)
      if (const auto key =
              key_of(ranks[r].recording.spans[ranks[r].spans[s].index], ranks[r].recording, sends))
        ends[*key] = {r, s};
  return ends;
}

int64_t first_whole_step(const Recording& recording) {
  if (recording.overwritten == 0) return recording.first_step;
  // The oldest span that is left belongs to a step of which others were overwritten.
  for (const Span& span : recording.spans)
    if (span.kind <= SpanKind::exchange && span.step >= recording.first_step) return span.step + 1;
  return recording.last_step + 1;
}

}  // namespace

RankTrace place(Recording recording, std::string node, const ClockAlignment& clock) {
  RankTrace trace{.recording = std::move(recording), .node = std::move(node), .spans = {}, .counters = {}};
  const auto aligned = [&](int64_t ns) { return std::llround(clock.own_s(double(ns) * 1e-9) * 1e9); };
  for (size_t i = 0; i < trace.recording.spans.size(); ++i) {
    const Span& span = trace.recording.spans[i];
    (span.kind == SpanKind::memory ? trace.counters : trace.spans)
        .push_back({.index = uint32_t(i),
                    .lane = lane_of(span.kind),
                    .begin_ns = aligned(span.begin_ns),
                    .end_ns = aligned(span.end_ns)});
  }
  assign_lanes(trace.spans);
  std::stable_sort(trace.counters.begin(), trace.counters.end(),
                   [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  return trace;
}

StepRange whole_steps(const std::vector<RankTrace>& ranks) {
  if (ranks.empty()) return {};
  StepRange steps{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  for (const RankTrace& rank : ranks) {
    steps.first = std::max(steps.first, first_whole_step(rank.recording));
    steps.last = std::min(steps.last, rank.recording.last_step);
  }
  return steps;
}

void keep_whole_steps(std::vector<RankTrace>& ranks) {
  const StepRange steps = whole_steps(ranks);
  if (steps.count() == 0) return;
  for (RankTrace& rank : ranks) {
    if (steps.first <= rank.recording.first_step) continue;
    const std::vector<Span>& recorded = rank.recording.spans;
    const auto begin = std::find_if(rank.spans.begin(), rank.spans.end(), [&](const PlacedSpan& p) {
      return recorded[p.index].kind == SpanKind::step && recorded[p.index].step == steps.first;
    });
    if (begin == rank.spans.end()) continue;
    const int64_t begin_ns = begin->begin_ns;
    for (auto* list : {&rank.spans, &rank.counters})
      std::erase_if(*list, [&](const PlacedSpan& p) { return p.begin_ns < begin_ns; });
    rank.recording.first_step = steps.first;
    assign_lanes(rank.spans);
  }
}

int64_t origin_ns(const std::vector<RankTrace>& ranks) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const RankTrace& rank : ranks)
    for (const auto* list : {&rank.spans, &rank.counters})
      for (const PlacedSpan& span : *list) first = std::min(first, span.begin_ns);
  return first == std::numeric_limits<int64_t>::max() ? 0 : first;
}

Flows pair_flows(const std::vector<RankTrace>& ranks) {
  const auto sends = ends_of(ranks, true), waits = ends_of(ranks, false);
  Flows result;
  size_t paired = 0;
  for (const auto& [key, from] : sends) {
    const auto to = waits.find(key);
    if (to == waits.end()) continue;
    ++paired;
    const PlacedSpan &send = ranks[from.rank].spans[from.span],
                     &wait = ranks[to->second.rank].spans[to->second.span];
    if (wait.end_ns - 1 <= send.begin_ns) {
      ++result.backwards;
      continue;
    }
    result.flows.push_back({!std::get<1>(key), from.rank, to->second.rank, from.span, to->second.span});
  }
  result.unpaired = sends.size() + waits.size() - 2 * paired;
  return result;
}

}  // namespace trainctl::trace
