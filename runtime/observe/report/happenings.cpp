#include "runtime/observe/report/happenings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/base/json.h"
#include "runtime/observe/run_table.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl::report {
namespace {

double time_of(const Json& event) { return event.at("t").get<double>(); }

/// How an event is drawn on the curves; "": it is not.
const char* mark_of(EventKind kind) {
  switch (kind) {
    case EventKind::start: return "start";
    case EventKind::failure: return "failure";
    case EventKind::restart:
    case EventKind::takeover:
    case EventKind::loss_rollback:
    case EventKind::regroup: return "restart";
    case EventKind::checkpoint: return "checkpoint";
    case EventKind::node_lost:
    case EventKind::node_failed:
    case EventKind::quarantine: return "node";
    case EventKind::step_skipped: return "skipped";
    case EventKind::change: return "change";
    case EventKind::stop_requested: return "stop";
    case EventKind::end: return "end";
    case EventKind::save_failed:
    case EventKind::save_hangs:
    case EventKind::checkpoint_damaged:
    case EventKind::checkpoint_suspect:
    case EventKind::upload_failed:
    case EventKind::care_failed:
    case EventKind::memory_off:
    case EventKind::interval_short:
    case EventKind::slow_node:
    case EventKind::slow_ranks:
    case EventKind::experts_idle:
    case EventKind::experts_uneven:
    case EventKind::loss_spike:
    case EventKind::loss_divergence:
    case EventKind::loss_plateau:
    case EventKind::loss_not_finite:
    case EventKind::loss_unanswered:
    case EventKind::experts_collapsed:
    case EventKind::replay_differs:
    case EventKind::replicas_differ:
    case EventKind::replicas_judged:
    case EventKind::state_not_verified:
    case EventKind::alert_failed: return "warning";
    default: return "";
  }
}

/// The program's own bookkeeping.
bool is_internal(EventKind kind) {
  return kind == EventKind::supervisor || kind == EventKind::starter || kind == EventKind::ranks_up ||
         kind == EventKind::attempt;
}

std::optional<int64_t> whole_number_at(const Json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

/// The step behind which the event lies: the one it names, else the last one that had ended.
std::optional<int64_t> step_of(const Json& event, const std::vector<StepRow>& rows) {
  for (const char* key : {"step", "from_step"})
    if (const auto step = whole_number_at(event, key)) return step;
  if (rows.empty() || std::isnan(rows.front().unix_s)) return std::nullopt;
  const auto after = std::partition_point(rows.begin(), rows.end(),
                                          [&](const StepRow& row) { return !(row.unix_s > time_of(event)); });
  return after == rows.begin() ? 0 : (after - 1)->step;
}

std::string words_of(const Json& event) {
  const auto kind = event_kind_of(event);
  if (kind == EventKind::checkpoint && event.contains("seconds") && event.contains("bytes"))
    return fmt::format("step {}: {:.3g} MB in {:.2g} s", event.value("step", 0),
                       event.value("bytes", 0.0) / 1e6, event.value("seconds", 0.0));
  return event_words(event);
}

/// Which of the events are shown: all, or of the ordinary checkpoints some in even distances, of others the
/// newest.
std::vector<const Json*> shown_events(const std::vector<Json>& events, size_t most) {
  std::vector<const Json*> checkpoints, others;
  for (const Json& event : events) {
    const auto kind = event_kind_of(event);
    if (kind && is_internal(*kind)) continue;
    (kind == EventKind::checkpoint ? checkpoints : others).push_back(&event);
  }
  const size_t some = std::max<size_t>(most / 3, 1);
  std::vector<const Json*> shown;
  for (size_t i = 0; i < std::min(checkpoints.size(), some); ++i)
    shown.push_back(checkpoints[checkpoints.size() <= some ? i : checkpoints.size() * (i + 1) / some - 1]);
  const size_t rest = most - std::min(checkpoints.size(), some);
  const size_t first = others.size() > rest ? others.size() - rest : 0;
  shown.insert(shown.end(), others.begin() + ptrdiff_t(first), others.end());
  std::stable_sort(shown.begin(), shown.end(),
                   [](const Json* a, const Json* b) { return time_of(*a) < time_of(*b); });
  return shown;
}

}  // namespace

const Json* Happenings::take(std::string_view line) {
  Json event = try_parse_json(line);
  const bool good = event.is_object() && event.contains("kind") && event["kind"].is_string() &&
                    event.contains("t") && event["t"].is_number();
  if (good) return &events_.emplace_back(std::move(event));
  ++damaged_;
  return nullptr;
}

double Happenings::begin_unix_s() const { return events_.empty() ? NAN : time_of(events_.front()); }
double Happenings::last_unix_s() const { return events_.empty() ? NAN : time_of(events_.back()); }

OrderedJson happenings_json(const Happenings& happenings, const std::vector<StepRow>& rows,
                             double begin_unix_s, size_t most) {
  OrderedJson list = OrderedJson::array();
  size_t all = 0;
  for (const Json& event : happenings.events()) {
    const auto kind = event_kind_of(event);
    all += !kind || !is_internal(*kind);
  }
  for (const Json* event : shown_events(happenings.events(), most)) {
    const auto kind = event_kind_of(*event);
    OrderedJson entry{{"t", number(std::round((time_of(*event) - begin_unix_s) * 100) / 100, 12)},
                       {"kind", event->at("kind").get<std::string>()},
                       {"mark", kind ? mark_of(*kind) : ""},
                       {"text", words_of(*event)}};
    if (const auto step = step_of(*event, rows)) entry["step"] = *step;
    list.push_back(std::move(entry));
  }
  const size_t left_out = all - list.size();
  return {{"events", std::move(list)}, {"left_out", left_out}};
}

}  // namespace trainctl::report
