#include "runtime/observe/trace/span_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/step_program.h"
#include "runtime/base/activity.h"
#include "runtime/base/json.h"
#include "runtime/observe/trace/peer_times.h"

namespace trainctl::trace {

using parallel::Act;

namespace {

/// "wait_activation" as words.
std::string words(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

/// The operation; a collective by what it is for.
std::string text_of(const Span& span, const Recording& of) {
  if (span.text == Span::kNone) return "";
  const std::string& text = of.texts[span.text];
  if (span.group == Span::kNone || text != "all-gather") return text;
  const std::string_view peers = peers_of_group(of.groups[span.group].name);
  if (peers == "context") return "gather keys and values";
  if (peers == "experts") return "count the rows of experts";
  return text;
}

std::string action_name(const Span& span, const Recording& of) {
  std::string name = words(parallel::name_of(Act(span.detail)));
  if (span.micro_batch >= 0) name += fmt::format(" mb {}", span.micro_batch);
  if (span.virtual_stage >= 0 && of.virtual_stages > 1) name += fmt::format(" vs {}", span.virtual_stage);
  if (span.part >= 0) name += fmt::format(" part {}", span.part);
  return name;
}

/// World ranks, or ranks of the group where only those are known.
Json peers_of(const Span& span, const SpanGroup& group) {
  Json peers = Json::array();
  for (int r = 0; r < 64; ++r)
    if (span.peers >> r & 1) peers.push_back(size_t(r) < group.members.size() ? group.members[size_t(r)] : r);
  return peers;
}

}  // namespace

std::string name_of_span(const Span& span, const Recording& of) {
  const std::string text = text_of(span, of);
  switch (span.kind) {
    case SpanKind::step: return fmt::format("step {}", span.step);
    case SpanKind::phase: return words(trainctl::name_of(RunPhase(span.detail)));
    case SpanKind::action: return action_name(span, of);
    case SpanKind::part:
      return span.micro_batch >= 0 ? fmt::format("{} mb {}", text, span.micro_batch) : text;
    case SpanKind::waited: return "wait: " + text;
    case SpanKind::exchange: return text.empty() ? "exchange" : text;
    case SpanKind::data: return "read a batch";
    case SpanKind::save: return text;
    case SpanKind::memory: return "memory";
  }
  return "";
}

const char* category_of(const Span& span) {
  switch (span.kind) {
    case SpanKind::step: return "step";
    case SpanKind::waited: return "wait";
    case SpanKind::exchange: return "exchange";
    case SpanKind::data: return "data";
    case SpanKind::save: return "save";
    case SpanKind::action: {
      const Act act = Act(span.detail);
      const bool computes = act == Act::forward || act == Act::backward || act == Act::backward_input ||
                            act == Act::backward_weight;
      return computes ? "compute" : act < Act::wait_weights ? "pipeline" : "state";
    }
    default: return "phase";
  }
}

std::string arguments_of(const Span& span, const Recording& of) {
  OrderedJson args = OrderedJson::object();
  if (span.step >= 0) args["step"] = span.step;
  if (span.micro_batch >= 0) args["micro_batch"] = span.micro_batch;
  if (span.virtual_stage >= 0) args["virtual_stage"] = span.virtual_stage;
  if (span.part >= 0) args["part"] = span.part;
  if (span.group != Span::kNone) {
    const SpanGroup& group = of.groups[span.group];
    args["group"] = group.name;
    if (const std::string_view peers = peers_of_group(group.name); peers != "other") args["of"] = peers;
    args["peers"] = peers_of(span, group);
  }
  if (span.kind == SpanKind::exchange) {
    args["sent"] = span.sent;
    args["received"] = span.received;
    args["tag"] = span.tag;
  }
  if (span.kind == SpanKind::save) {
    args["bytes"] = span.sent;
    if (span.detail == Span::kOpen) args["goes_on"] = true;
  }
  return dump_json(args);
}

std::string name_of_rank(const Recording& of, const std::string& node) {
  const std::string name = fmt::format("rank {} · stage {} · dp {} · tp {}", of.rank, of.pp, of.dp, of.tp);
  return node.empty() ? name : name + " · " + node;
}

}  // namespace trainctl::trace
