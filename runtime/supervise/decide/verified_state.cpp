#include "runtime/supervise/decide/verified_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/train/control/event_kind.h"
#include "runtime/train/measure/step_line.h"

namespace trainctl {
namespace {

/// The newest step up to `step` behind which all replicas agreed.
std::optional<int64_t> newest_agreed(const std::vector<std::string>& steps, int64_t step) {
  for (auto line = steps.rbegin(); line != steps.rend(); ++line)
    if (const auto agreed = agreed_step(*line); agreed && *agreed <= step) return agreed;
  return std::nullopt;
}

/// A check that sends the run back.
struct Doubt {
  int64_t step = 0;
  std::string text;
};

/// What the events of a run say of its checks, up to the newest one.
struct DoubtHistory {
  std::optional<Doubt> open;         ///< of the attempt that began last
  bool is_undecided = false;         ///< in that attempt
  std::optional<int64_t> run_began;  ///< from_step of the first attempt
  int64_t attempt_began = 0;         ///< of the last one
  std::vector<int64_t> chosen;       ///< from where attempts began that followed a doubt
  int64_t first_saved = INT64_MAX;

  void add(EventKind kind, const Json& event);
  std::optional<int64_t> newest_chosen(int64_t step) const {
    std::optional<int64_t> newest;
    for (const int64_t one : chosen)
      if (one <= step) newest = std::max(newest.value_or(one), one);
    return newest;
  }

 private:
  bool is_chosen_next_ = false;
};

void DoubtHistory::add(EventKind kind, const Json& event) {
  const int64_t step = event.value("step", int64_t{0});
  switch (kind) {
    case EventKind::start:
      attempt_began = event.value("from_step", int64_t{0});
      if (!run_began) run_began = attempt_began;
      if (is_chosen_next_) chosen.push_back(attempt_began);
      is_chosen_next_ = is_undecided = false;
      open.reset();
      return;
    case EventKind::checkpoint: first_saved = std::min(first_saved, event.value("step", INT64_MAX)); return;
    case EventKind::replicas_differ: is_undecided = true; return;
    // They differ again, and the digests of before do not say which of them is wrong.
    case EventKind::replicas_judged: is_undecided |= event.value("wrong", Json::array()).empty(); return;
    case EventKind::state_not_verified: is_chosen_next_ = false; return;
    case EventKind::replay_differs: {
      const std::string answer = event.value("answer", "");
      if (answer != "put_out" && answer != "undecided") return;
      is_undecided |= answer == "undecided";
      is_chosen_next_ = true;
      open = {.step = step, .text = event.value("text", "")};
      return;
    }
    default: return;
  }
}

DoubtHistory history_of(const std::vector<std::string>& events) {
  DoubtHistory history;
  for (const std::string& line : events) {
    const Json event = try_parse_json(line);
    const auto kind = event_kind_of(event);
    if (kind) history.add(*kind, event);
  }
  return history;
}

/// The larger of two; nullopt counts for nothing.
std::optional<int64_t> larger(std::optional<int64_t> a, std::optional<int64_t> b) { return std::max(a, b); }

}  // namespace

std::optional<BackToVerified> back_to_verified(const std::vector<std::string>& events,
                                               const std::function<std::vector<std::string>()>& steps) {
  const DoubtHistory history = history_of(events);
  if (!history.open) return std::nullopt;
  const Doubt& doubt = *history.open;
  const std::optional<int64_t> agreed = newest_agreed(steps(), doubt.step - 1);
  const std::optional<int64_t> verified = larger(agreed, history.newest_chosen(doubt.step));
  const int64_t at_most = verified.value_or(history.attempt_began);
  const char* const because = !verified            ? "no check has agreed before, and the attempt began there"
                              : verified == agreed ? "all replicas agreed then"
                                                   : "a doubt before has led there";
  return BackToVerified{
      .at_most = at_most,
      .doubt = doubt.step,
      .may_begin_again = history.attempt_began == history.run_began && history.first_saved > at_most,
      .why = fmt::format("going back to a state of step {} or before: {}; {}", at_most, because, doubt.text)};
}

std::string not_verified_text(const BackToVerified& back) {
  return fmt::format(
      "no state of step {} or before is left to go back to: the run goes on from the newest one before step "
      "{}, whose bits no check has verified; to begin elsewhere, stop it and give trainctl resume a --step",
      back.at_most, back.doubt);
}

std::optional<int64_t> agreed_step(const std::string& line) {
  const StepLine of = step_view(line);
  return of.replayed ? std::optional(of.step) : std::nullopt;
}

int64_t way_back(const std::vector<std::string>& events, std::optional<int64_t> agreed) {
  const DoubtHistory history = history_of(events);
  return larger(agreed, history.newest_chosen(INT64_MAX)).value_or(history.attempt_began);
}

bool is_undecided(const std::vector<std::string>& events) { return history_of(events).is_undecided; }

}  // namespace trainctl
