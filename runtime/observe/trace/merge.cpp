#include "runtime/observe/trace/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/observe/trace/slow_links.h"

namespace trainctl::trace {
namespace {

constexpr size_t kMostSlowLinks = 8;  // in the summary

/// The nodes of the recorded ranks, as indices of the answer's nodes; -1: the answer names none.
class Nodes {
 public:
  Nodes(const TraceAnswer& answer, const std::vector<Recording>& recordings) : answer_(answer) {
    for (const Recording& r : recordings) used_.push_back(index_of(r.rank));
    std::sort(used_.begin(), used_.end());
    used_.erase(std::unique(used_.begin(), used_.end()), used_.end());
  }

  std::string name_of(int rank) const { return name(index_of(rank)); }
  bool are_several() const { return used_.size() > 1; }
  const std::vector<int>& used() const { return used_; }
  std::string name(int index) const { return index < 0 ? "" : answer_.nodes[size_t(index)].name; }

  /// On one node all ranks have one clock; its rate does not matter.
  ClockAlignment clock_of(int rank) const {
    const int index = index_of(rank);
    const TraceAnswer::Node* node = index < 0 ? nullptr : &answer_.nodes[size_t(index)];
    if (!node || (!node->before && !node->after)) {
      if (!are_several()) return ClockAlignment();
      throw Error(
          ErrorCode::kLauncher,
          fmt::format("{} did not answer the question for its clock, so the times of its ranks cannot be "
                      "compared with those of other nodes; trace again, or the ranks of one node alone "
                      "with --ranks",
                      node ? node->name : fmt::format("the node of rank {}", rank)));
    }
    if (!are_several() || !node->before || !node->after)
      return ClockAlignment(node->before ? *node->before : *node->after);
    return ClockAlignment(*node->before, *node->after);
  }

  /// Of the two nodes whose clocks are known least.
  double error_s() const {
    if (!are_several()) return 0;
    std::vector<double> errors;
    for (const int index : used_) errors.push_back(clock_of(answer_.nodes[size_t(index)].first).error_s());
    std::sort(errors.rbegin(), errors.rend());
    return errors[0] + errors[1];
  }

 private:
  int index_of(int rank) const {
    for (size_t i = 0; i < answer_.nodes.size(); ++i) {
      const TraceAnswer::Node& node = answer_.nodes[i];
      if (rank >= node.first && rank < node.first + node.count) return int(i);
    }
    return -1;
  }
  const TraceAnswer& answer_;
  std::vector<int> used_;
};

int64_t end_ns(const std::vector<RankTrace>& ranks) {
  int64_t last = std::numeric_limits<int64_t>::min();
  for (const RankTrace& rank : ranks)
    for (const PlacedSpan& span : rank.spans) last = std::max(last, span.end_ns);
  return last;
}

/// Those that happened while the ranks recorded. Their times are of the supervisor's wall clock.
std::vector<RunEvent> events_within(const std::vector<std::string>& lines, const TraceAnswer& answer,
                                    const std::vector<RankTrace>& ranks) {
  const int64_t from = origin_ns(ranks), to = end_ns(ranks);
  std::vector<RunEvent> events;
  for (const std::string& line : lines) {
    Json fields = try_parse_json(line);
    if (!fields.is_object() || !fields.contains("t") || !fields["t"].is_number() ||
        !fields.contains("kind") || !fields["kind"].is_string())
      continue;
    const double at_s = answer.monotonic_s + (fields["t"].get<double>() - answer.unix_s);
    const int64_t at_ns = std::llround(at_s * 1e9);
    if (at_ns < from || at_ns > to) continue;
    const std::string kind = fields["kind"];
    fields.erase("kind");
    fields.erase("t");
    fields.erase("v");
    events.push_back({at_ns, kind, std::move(fields)});
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
  return events;
}

OrderedJson clocks_json(const TraceAnswer& answer, const Nodes& nodes) {
  OrderedJson list = OrderedJson::array();
  for (const int index : nodes.used()) {
    if (index < 0) continue;
    const TraceAnswer::Node& node = answer.nodes[size_t(index)];
    OrderedJson json = {{"node", node.name}};
    for (const auto& [when, offset] : {std::pair{"before", node.before}, std::pair{"after", node.after}})
      if (offset)
        json[when] = {{"offset_us", std::round(offset->offset_s * 1e9) / 1e3},
                      {"error_us", std::round(offset->error_s * 1e9) / 1e3}};
    list.push_back(std::move(json));
  }
  return list;
}

TraceSummary summary_of(const MergeInput& input, const Trace& trace, const Nodes& nodes) {
  TraceSummary s{
      .run_id = input.run_id, .epoch = input.answer.epoch, .requested_steps = input.requested_steps};
  s.alignment_error_s = nodes.error_s();
  s.flows = trace.flows.flows.size();
  for (const RankTrace& rank : trace.ranks) {
    s.ranks.push_back(rank.recording.rank);
    s.of_ranks = rank.recording.ranks;
    s.spans += rank.spans.size();
    s.overwritten += rank.recording.overwritten;
  }
  const StepRange recorded{input.answer.first_step, input.answer.last_step}, whole = whole_steps(trace.ranks);
  s.first_step = whole.count() > 0 ? whole.first : recorded.first;
  s.last_step = recorded.last;
  s.communication = peer_times(trace.ranks, s.last_step - s.first_step + 1);
  s.actions = action_times(trace.ranks, s.last_step - s.first_step + 1);
  if (recorded.count() < input.requested_steps)
    s.notes.push_back(fmt::format("the run ended with step {}: {} of {} steps were recorded", recorded.last,
                                  recorded.count(), input.requested_steps));
  if (whole.count() == 0)
    s.notes.push_back(
        "no step is whole: a rank does more in one step than it has room for; the oldest spans are missing");
  else if (whole.count() < recorded.count())
    s.notes.push_back(fmt::format("steps {} to {} are left out: a rank had no room for all of their spans",
                                  recorded.first, whole.first - 1));
  if (trace.flows.backwards > 0)
    s.notes.push_back(fmt::format("{} without an arrow: by the clocks they arrived before they were sent",
                                  count_of(int64_t(trace.flows.backwards), "message")));
  const std::vector<SlowLink> slow = slow_links(trace.ranks);
  for (size_t i = 0; i < std::min(slow.size(), kMostSlowLinks); ++i) s.notes.push_back(slow[i].text());
  if (slow.size() > kMostSlowLinks)
    s.notes.push_back(
        fmt::format("{} are slow, too", count_of(int64_t(slow.size() - kMostSlowLinks), "other link")));
  return s;
}

OrderedJson description_of(const MergeInput& input, const Trace& trace, const TraceSummary& s,
                            const Nodes& nodes) {
  const bool on_device = std::any_of(trace.ranks.begin(), trace.ranks.end(),
                                     [](const RankTrace& rank) { return rank.recording.on_device; });
  const double origin_s = double(origin_ns(trace.ranks)) * 1e-9;
  return {
      {"v", 1},
      {"program", fmt::format("trainctl {}", TRAINCTL_VERSION)},
      {"run", s.run_id},
      {"epoch", s.epoch},
      {"first_step", s.first_step},
      {"last_step", s.last_step},
      {"ranks", s.ranks},
      {"of_ranks", s.of_ranks},
      {"spans", s.spans},
      {"overwritten_spans", s.overwritten},
      {"flows", s.flows},
      {"flows_unpaired", trace.flows.unpaired},
      {"alignment_error_us", std::round(s.alignment_error_s * 1e9) / 1e3},
      {"clocks", clocks_json(input.answer, nodes)},
      {"origin_unix_s", input.answer.unix_s + (origin_s - input.answer.monotonic_s)},
      {"times", on_device ? "of the host, which gives work to the GPU and goes on" : "of the rank's threads"},
      {"notes", s.notes}};
}

}  // namespace

Merged merge(MergeInput input) {
  const Nodes nodes(input.answer, input.recordings);
  Merged merged;
  for (Recording& recording : input.recordings) {
    const int rank = recording.rank;
    merged.trace.ranks.push_back(place(std::move(recording), nodes.name_of(rank), nodes.clock_of(rank)));
  }
  keep_whole_steps(merged.trace.ranks);
  merged.trace.flows = pair_flows(merged.trace.ranks);
  merged.trace.events = events_within(input.events, input.answer, merged.trace.ranks);
  merged.summary = summary_of(input, merged.trace, nodes);
  merged.trace.description = description_of(input, merged.trace, merged.summary, nodes);
  return merged;
}

std::string TraceSummary::to_json(const std::string& file, uint64_t bytes) const {
  OrderedJson of_peers = OrderedJson::array(), of_actions = OrderedJson::array();
  for (const ActionTime& time : actions)
    of_actions.push_back({{"action", time.action}, {"compute_ms", std::round(time.compute_s * 1e6) / 1e3}});
  for (const PeerTime& time : communication)
    of_peers.push_back({{"peers", time.peers},
                        {"wait_ms", std::round(time.wait_s * 1e6) / 1e3},
                        {"exchange_ms", std::round(time.exchange_s * 1e6) / 1e3},
                        {"sent_bytes", std::round(time.sent_bytes)}});
  return dump_json(OrderedJson{{"run_id", run_id},
                               {"epoch", epoch},
                               {"first_step", first_step},
                               {"last_step", last_step},
                               {"requested_steps", requested_steps},
                               {"ranks", ranks},
                               {"of_ranks", of_ranks},
                               {"spans", spans},
                               {"overwritten_spans", overwritten},
                               {"flows", flows},
                               {"alignment_error_us", std::round(alignment_error_s * 1e9) / 1e3},
                               {"communication", std::move(of_peers)},
                               {"actions", std::move(of_actions)},
                               {"notes", notes},
                               {"file", file},
                               {"bytes", bytes}});
}

}  // namespace trainctl::trace
