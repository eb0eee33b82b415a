#include "runtime/observe/trace/peer_times.h"

#include <algorithm>
#include <array>
#include <utility>

#include "parallel/step_program.h"

namespace trainctl::trace {

std::string_view peers_of_group(std::string_view group) {
  // Names are made by make_mesh_communicators and make_edges; longer beginnings come first.
  static constexpr std::pair<std::string_view, std::string_view> kBeginnings[] = {
      {"gathers of the expert data group", "gradients of experts"},
      {"gathers of the dp group", "data"},
      {"expert data group", "gradients of experts"},
      {"expert group", "experts"},
      {"cp group", "context"},
      {"tp group", "tensor"},
      {"dp group", "data"},
      {"pp group", "pipeline"},
      {"tied embedding", "tied embedding"}};
  for (const auto& [beginning, peers] : kBeginnings)
    if (group.starts_with(beginning)) return peers;
  return "other";
}

std::vector<PeerTime> peer_times(const std::vector<RankTrace>& ranks, int64_t steps) {
  std::vector<PeerTime> times;
  const auto of = [&](std::string_view peers) -> PeerTime& {
    const auto known =
        std::find_if(times.begin(), times.end(), [&](const PeerTime& t) { return t.peers == peers; });
    if (known != times.end()) return *known;
    return times.emplace_back(PeerTime{.peers = std::string(peers)});
  };
  for (const RankTrace& rank : ranks)
    for (const PlacedSpan& placed : rank.spans) {
      const Span& span = rank.recording.spans[placed.index];
      if (span.group == Span::kNone) continue;
      PeerTime& time = of(peers_of_group(rank.recording.groups[span.group].name));
      const double seconds = double(placed.end_ns - placed.begin_ns) * 1e-9;
      if (span.kind == SpanKind::waited) time.wait_s += seconds;
      if (span.kind != SpanKind::exchange) continue;
      time.exchange_s += seconds;
      time.sent_bytes += double(span.sent);
    }
  const double count = double(std::max<int64_t>(1, steps)) * double(std::max<size_t>(1, ranks.size()));
  for (PeerTime& time : times) time.wait_s /= count, time.exchange_s /= count, time.sent_bytes /= count;
  std::stable_sort(times.begin(), times.end(),
                   [](const PeerTime& a, const PeerTime& b) { return a.wait_s > b.wait_s; });
  return times;
}

std::vector<ActionTime> action_times(const std::vector<RankTrace>& ranks, int64_t steps) {
  std::array<double, parallel::kActs> ns{};
  for (const RankTrace& rank : ranks) {
    if (rank.recording.on_device) return {};
    const PlacedSpan* action = nullptr;  // the newest one: they do not overlap
    for (const PlacedSpan& placed : rank.spans) {
      const Span& span = rank.recording.spans[placed.index];
      const double length = double(placed.end_ns - placed.begin_ns);
      if (span.kind == SpanKind::action) {
        action = &placed;
        ns[span.detail] += length;
      } else if (span.kind == SpanKind::waited && action && placed.begin_ns < action->end_ns) {
        ns[rank.recording.spans[action->index].detail] -= length;
      }
    }
  }
  const double count = 1e9 * double(std::max<int64_t>(1, steps)) * double(std::max<size_t>(1, ranks.size()));
  std::vector<ActionTime> times;
  for (int act = 0; act < parallel::kActs; ++act)
    if (ns[size_t(act)] > 0)
      times.push_back({parallel::name_of(parallel::Act(act)), ns[size_t(act)] / count});
  return times;
}

}  // namespace trainctl::trace
