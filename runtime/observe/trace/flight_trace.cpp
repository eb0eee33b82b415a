#include "runtime/observe/trace/flight_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "runtime/observe/trace/rank_choice.h"

namespace trainctl::trace {
namespace {

/// Names in a table of a recording, each once.
class FlightNames {
 public:
  explicit FlightNames(Recording& recording) : recording_(recording) {}
  uint16_t text(const std::string& name) {
    return number_in(
        recording_.texts, name, [](const std::string& one) { return one; }, [&] { return name; });
  }
  uint16_t group(const std::string& name) {
    return number_in(
        recording_.groups, name, [](const SpanGroup& one) { return one.name; },
        [&] { return SpanGroup{.name = name}; });
  }

 private:
  template <typename List, typename NameOf, typename Make>
  static uint16_t number_in(List& list, const std::string& name, NameOf name_of, Make make) {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const auto& one) { return name_of(one) == name; });
    if (found != list.end()) return uint16_t(found - list.begin());
    list.push_back(make());
    return uint16_t(list.size() - 1);
  }
  Recording& recording_;
};

std::string wait_words(const Activity& wait) {
  std::string text(wait.operation.view());
  for (int i = 0; i < wait.peer_count; ++i)
    text += fmt::format("{} {}", i ? "," : " for rank", wait.peers[i]);
  return text + (wait.more_peers ? " and more" : "");
}

Span flight_span(const FlightEntry& entry, int64_t origin_ns, int64_t end_ns) {
  const Activity& activity = entry.activity;
  return {.begin_ns = entry.unix_ns - origin_ns,
          .end_ns = std::max(end_ns, entry.unix_ns) - origin_ns,
          .step = activity.step,
          .micro_batch = activity.micro_batch,
          .virtual_stage = int16_t(activity.virtual_stage),
          .kind = SpanKind::phase,
          .detail = uint8_t(activity.phase)};
}

Recording recording_of_flight(const FlightLog& log, const parallel::MeshShape& mesh, int64_t origin_ns,
                              int64_t end_ns) {
  const parallel::MeshPosition at = parallel::position_of(mesh, log.rank);
  Recording recording{.rank = log.rank,
                      .ranks = mesh.world_size(),
                      .pp = at.pp,
                      .dp = at.dp,
                      .tp = at.tp,
                      .pp_size = mesh.pp,
                      .dp_size = mesh.dp,
                      .tp_size = mesh.tp,
                      .epoch = log.epoch};
  FlightNames names(recording);
  for (size_t i = 0; i < log.entries.size(); ++i) {
    const FlightEntry& entry = log.entries[i];
    const int64_t next_ns = i + 1 < log.entries.size() ? log.entries[i + 1].unix_ns : end_ns;
    if (entry.activity.is_waiting()) {
      Span wait = flight_span(entry, origin_ns, next_ns);
      wait.kind = SpanKind::waited;
      wait.text = names.text(wait_words(entry.activity));
      if (!entry.activity.communicator.empty())
        wait.group = names.group(std::string(entry.activity.communicator.view()));
      recording.spans.push_back(wait);
    } else if (!entry.goes_on || i == 0) {
      size_t next = i + 1;
      while (next < log.entries.size() &&
             (log.entries[next].activity.is_waiting() || log.entries[next].goes_on))
        ++next;
      recording.spans.push_back(
          flight_span(entry, origin_ns, next < log.entries.size() ? log.entries[next].unix_ns : end_ns));
    }
  }
  return recording;
}

std::set<int> chosen_ranks(std::span<const FlightLog> logs, const FlightVerdict& verdict) {
  std::set<int> ranks;
  const auto add = [&](int rank) {
    if (rank >= 0 && ranks.size() < size_t(kMostRanks)) ranks.insert(rank);
  };
  for (const FlightVerdict::Missing& m : verdict.missing) add(m.rank), add(m.first);
  for (const FlightVerdict::Behind& b : verdict.behind) add(b.rank);
  for (const FlightLog& log : logs) add(log.rank);
  return ranks;
}

}  // namespace

Trace flight_trace(std::span<const FlightLog> logs, const FlightVerdict& verdict,
                   const parallel::MeshShape& mesh, const std::string& run_id) {
  const std::set<int> ranks = chosen_ranks(logs, verdict);
  std::vector<const FlightLog*> chosen;
  for (const FlightLog& log : logs)
    if (ranks.contains(log.rank) && !log.entries.empty() && log.rank < mesh.world_size())
      chosen.push_back(&log);
  std::sort(chosen.begin(), chosen.end(), [](const auto* a, const auto* b) { return a->rank < b->rank; });
  int64_t first_ns = std::numeric_limits<int64_t>::max(), last_ns = 0;
  for (const FlightLog* log : chosen) {
    first_ns = std::min(first_ns, log->entries.front().unix_ns);
    last_ns = std::max(last_ns, log->entries.back().unix_ns);
  }
  Trace trace;
  for (const FlightLog* log : chosen)
    trace.ranks.push_back(place(recording_of_flight(*log, mesh, first_ns, last_ns), log->host, {}));
  for (const FlightVerdict::Missing& m : verdict.missing)
    if (m.first >= 0 && !chosen.empty())
      trace.events.push_back({.at_ns = std::max<int64_t>(0, int64_t(m.since_unix_s * 1e9) - first_ns),
                              .name = fmt::format("rank {} is missing in {}", m.rank, m.operation),
                              .fields = Json{{"communicator", m.communicator}, {"waiting", m.waiting}}});
  trace.description = {{"run", run_id},
                       {"begin_unix_s", chosen.empty() ? 0.0 : double(first_ns) * 1e-9},
                       {"verdict", verdict.summary()}};
  return trace;
}

}  // namespace trainctl::trace
