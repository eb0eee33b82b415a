#include "runtime/observe/report/happenings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "runtime/base/json.h"
#include "runtime/observe/run_table.h"
#include "runtime/train/control/event_kind.h"

namespace trainctl::report {
namespace {

double time_of(const Json& event) { return event.at("t").get<double>(); }

std::optional<EventKind> kind_of_event(const Json& event) {
  return of_word<EventKind>(event.at("kind").get<std::string>());
}

/// How an event is drawn on the curves; "": it is not.
const char* mark_of(EventKind kind) {
  switch (kind) {
    case EventKind::start: return "start";
    case EventKind::failure: return "failure";
    case EventKind::restart:
    case EventKind::takeover:
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
    case EventKind::slow_ranks:
    case EventKind::experts_idle:
    case EventKind::experts_uneven: return "warning";
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
  const auto kind = kind_of_event(event);
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
    const auto kind = kind_of_event(event);
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

/// From the end of the step before, in the same attempt, to the end of this one; NaN: not known.
double time_between(const StepRow& before, const StepRow& row) {
  const bool next = before.step + 1 == row.step && before.attempt == row.attempt;
  return next ? row.unix_s - before.unix_s : NAN;
}

}  // namespace

void Happenings::take(std::string_view line) {
  Json event = try_parse_json(line);
  const bool good = event.is_object() && event.contains("kind") && event["kind"].is_string() &&
                    event.contains("t") && event["t"].is_number();
  if (good)
    events_.push_back(std::move(event));
  else
    ++damaged_;
}

double Happenings::begin_unix_s() const { return events_.empty() ? NAN : time_of(events_.front()); }
double Happenings::last_unix_s() const { return events_.empty() ? NAN : time_of(events_.back()); }

std::vector<Session> sessions_of(const Happenings& happenings, const std::vector<StepRow>& rows,
                                 double now_unix_s) {
  std::vector<Session> sessions;
  bool open = false;
  const auto begin = [&](double at) {
    sessions.push_back({at, at});
    open = true;
  };
  // The last step that ended in the newest session, before `until`.
  const auto extend_by_steps = [&](double until) {
    for (auto row = rows.rbegin(); row != rows.rend() && !(row->unix_s <= sessions.back().end_unix_s); ++row)
      if (row->unix_s < until) {
        sessions.back().end_unix_s = row->unix_s;
        break;
      }
  };
  for (const Json& event : happenings.events()) {
    const auto kind = kind_of_event(event);
    const double at = time_of(event);
    if (kind == EventKind::supervisor) {
      if (open) extend_by_steps(at);
      begin(at);
    } else if (!open) {
      // Records of an older version, or of what came behind the end of a supervisor.
      if (kind == EventKind::start) begin(at);
    }
    if (open) sessions.back().end_unix_s = std::max(sessions.back().end_unix_s, at);
    if (kind == EventKind::end) open = false;
  }
  if (open) extend_by_steps(INFINITY);
  if (open && now_unix_s > sessions.back().end_unix_s) sessions.back().end_unix_s = now_unix_s;
  return sessions;
}

void LostSteps::take(std::string_view line) {
  const StepRow row = row_of(line);
  if (row.step <= 0) return;
  ++steps_;
  const double between = time_between(before_, row);
  if (std::isfinite(between))
    seconds_ += between;
  else if (std::isfinite(row.step_s))
    seconds_ += row.step_s;
  before_ = row;
}

double TimeUse::goodput() const { return supervised_s > 0 ? training_s / supervised_s : NAN; }

TimeUse time_use(const std::vector<StepRow>& rows, const LostSteps& lost,
                 const std::vector<Session>& sessions) {
  struct Sums {
    int64_t steps = 0, timed = 0;
    double training = 0, evaluation = 0, saving = 0;
  };
  std::map<uint64_t, Sums> attempts;
  for (size_t i = 0; i < rows.size(); ++i) {
    const StepRow& row = rows[i];
    Sums& sums = attempts[row.attempt];
    ++sums.steps;
    const double evaluation = row.phase_or_zero(&Phases::evaluation_s);
    const double saving = row.phase_or_zero(&Phases::checkpoint_s);
    const double between = i > 0 ? time_between(rows[i - 1], row) : NAN;
    const double training =
        std::isfinite(between) ? std::max(0.0, between - evaluation - saving) : row.step_s;
    if (!std::isfinite(training)) continue;
    ++sums.timed;
    sums.training += training;
    sums.evaluation += evaluation;
    sums.saving += saving;
  }
  TimeUse use{.lost_s = lost.seconds(), .lost_steps = lost.steps()};
  for (const auto& [attempt, sums] : attempts) {
    if (sums.timed == 0) continue;
    const double all = double(sums.steps) / double(sums.timed);
    use.training_s += sums.training * all;
    use.evaluation_s += sums.evaluation;
    use.saving_s += sums.saving;
  }
  for (const Session& session : sessions) use.supervised_s += session.end_unix_s - session.begin_unix_s;
  const double parts = use.training_s + use.evaluation_s + use.saving_s + use.lost_s;
  // Clocks of two machines may differ.
  if (use.supervised_s > 0) use.supervised_s = std::max(use.supervised_s, parts);
  use.other_s = std::max(0.0, use.supervised_s - parts);
  return use;
}

OrderedJson time_use_json(const TimeUse& use) {
  return {{"supervised_s", number(use.supervised_s, 7)},
          {"training_s", number(use.training_s, 7)},
          {"evaluation_s", number(use.evaluation_s)},
          {"saving_s", number(use.saving_s)},
          {"lost_s", number(use.lost_s)},
          {"other_s", number(use.other_s)},
          {"lost_steps", use.lost_steps},
          {"goodput", number(use.goodput())}};
}

OrderedJson happenings_json(const Happenings& happenings, const std::vector<StepRow>& rows,
                             double begin_unix_s, size_t most) {
  OrderedJson list = OrderedJson::array();
  size_t all = 0;
  for (const Json& event : happenings.events()) {
    const auto kind = kind_of_event(event);
    all += !kind || !is_internal(*kind);
  }
  for (const Json* event : shown_events(happenings.events(), most)) {
    const auto kind = kind_of_event(*event);
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
