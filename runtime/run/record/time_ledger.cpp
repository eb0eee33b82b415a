#include "runtime/run/record/time_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/units.h"

namespace trainctl {
namespace {

constexpr const char* kSentences[] = {"steps that count",
                                      "pipeline bubble",
                                      "waiting for slower ranks",
                                      "evaluation",
                                      "waiting for saves",
                                      "steps done again",
                                      "detecting failures",
                                      "recovering",
                                      "waiting for nodes",
                                      "starting and ending ranks",
                                      "loading",
                                      "stopped",
                                      "not recorded"};
static_assert(std::size(kSentences) == kTimeCauses);

double or_zero(double value) { return std::isfinite(value) ? std::max(0.0, value) : 0; }

double seconds_at(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? or_zero(found->get<double>()) : 0;
}
std::optional<double> known_at(const Json& event, const char* key) {
  return event.contains(key) ? std::optional(seconds_at(event, key)) : std::nullopt;
}
template <typename Number>
Number whole_at(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number_integer() ? found->get<Number>() : Number(0);
}
std::string word_at(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

/// The events that divide time. Others are signs of life.
bool divides(EventKind kind) {
  return kind == EventKind::supervisor || kind == EventKind::start || kind == EventKind::attached ||
         kind == EventKind::ranks_up || kind == EventKind::loaded || kind == EventKind::attempt ||
         kind == EventKind::checkpoint || kind == EventKind::end || kind == EventKind::regroup ||
         kind == EventKind::loss_rollback;
}

/// Goes through the events. Everything before at_ has a cause.
class Bookkeeper {
 public:
  explicit Bookkeeper(const TimeRecords& records) : records_(records) {}

  void take(const TimeRecords::Event& event) {
    const double t = std::max(event.unix_s, seen_);
    if (ledger_.attempts.empty()) at_ = t;
    switch (event.kind) {
      case EventKind::supervisor: supervisor(t); break;
      case EventKind::start: start(event, t); break;
      case EventKind::attached:
        supervised_from_.reset();  // the ranks went on meanwhile
        attached_ = open_;
        break;
      case EventKind::ranks_up:
        if (open_) up_ = t;
        break;
      case EventKind::loaded:
        if (open_) load_s_ = event.load_s, has_loaded_ = true;
        break;
      case EventKind::checkpoint:
        if (open_) published_ = t;
        break;
      case EventKind::regroup:
      case EventKind::loss_rollback: (open_ ? goes_again_ : has_failed_) = true; break;
      case EventKind::attempt: attempt(event, t); break;
      case EventKind::end: end(event, t); break;
      default: break;
    }
    seen_ = t;
  }

  TimeLedger finish(double now_unix_s) {
    const bool lives = std::isfinite(now_unix_s) && supervised_;
    if (open_) {
      const double last = steps().last_unix_s;
      const double to =
          lives ? std::max(now_unix_s, seen_) : std::max(seen_, std::isfinite(last) ? last : seen_);
      close(by_records(to), Close::cut);
    } else if (lives) {
      begin_entry();
      between(std::max(now_unix_s, seen_), 0);
    }
    return std::move(ledger_);
  }

 private:
  enum class Close { failed, ended, cut };
  /// When the parts of an attempt end, by the clock of the records.
  struct Cuts {
    double begun, up, first, last, evidence, to;
  };

  AttemptTime& entry() {
    if (ledger_.attempts.empty()) ledger_.attempts.push_back({.begin_unix_s = at_, .end_unix_s = at_});
    return ledger_.attempts.back();
  }
  void spend(TimeCause cause, double until) {
    if (!(until > at_)) return;
    entry().seconds[cause] += until - at_;
    at_ = entry().end_unix_s = until;
  }
  void spend_for(TimeCause cause, double seconds, double at_most) {
    spend(cause, std::min(at_most, at_ + seconds));
  }
  const StepTimes& steps() const { return records_.steps_of(epoch_); }

  void supervisor(double t) {
    if (!supervised_) {
      begin_entry();
      spend(TimeCause::stopped, t);
    } else if (!supervised_from_) {
      supervised_from_ = t;
      last_sign_ = seen_;
    }
    supervised_ = true;
  }

  /// The entry of the next attempt, to which the time from now on belongs.
  void begin_entry() {
    if (is_begun_) return;
    is_begun_ = true;
    if (ledger_.attempts.empty()) return void(entry());
    if (ledger_.attempts.back().epoch == 0) return;
    ledger_.attempts.push_back({.begin_unix_s = at_, .end_unix_s = at_});
  }

  void start(const TimeRecords::Event& event, double t) {
    cut_off(t);
    supervised_ = true;
    begin_entry();
    between(t, event.waited_s);
    open_ = true, is_begun_ = attached_ = has_loaded_ = false;
    epoch_ = event.epoch;
    entry().epoch = event.epoch;
    entry().ranks = event.ranks;
    for (AttemptTime& before : ledger_.attempts)
      if (before.ranks == 0) before.ranks = event.ranks;
    loads_ = event.loads;
    begun_ = t;
    up_ = published_ = NAN;
    load_s_.reset();
  }

  /// The supervisor of the attempt that is open died, and another one goes on without its ranks.
  void cut_off(double t) {
    if (open_) {
      const double last = steps().last_unix_s, until = supervised_from_.value_or(t);
      const double sign = std::isfinite(last) && last < until ? std::max(last, last_sign_) : last_sign_;
      close(by_records(std::clamp(sign, at_, std::max(at_, until))), Close::cut);
      begin_entry();
      spend(TimeCause::stopped, until);
    }
    supervised_from_.reset();
  }

  /// No attempt runs until then.
  void between(double until, std::optional<double> waited_s) {
    spend_for(TimeCause::idle, waited_s.value_or(0), until);
    spend(!has_failed_ ? TimeCause::starting : waited_s ? TimeCause::recovering : TimeCause::unknown, until);
  }

  /// Where no event has the parts of the attempt, or one that attached has a part of them.
  Cuts by_records(double to) const {
    const StepTimes& s = steps();
    const double up = std::isfinite(up_) ? up_ : std::isfinite(s.first_unix_s) ? begun_ : to;
    const double first = std::isfinite(s.first_unix_s) ? s.first_unix_s : to;
    const double last = std::isfinite(s.last_unix_s) ? s.last_unix_s : first;
    return {begun_, up, first, last, to, to};
  }

  void attempt(const TimeRecords::Event& event, double t) {
    if (!open_) return;
    Cuts cuts = by_records(t);
    cuts.evidence = t - event.ending_s;
    cuts.last = cuts.evidence - event.detecting_s;
    if (!attached_) {
      cuts.first = cuts.last - event.stepping_s;
      cuts.up = cuts.first - event.first_step_s;
      cuts.begun = cuts.up - event.starting_s;
    }
    close(cuts, event.failed ? Close::failed : Close::ended);
  }

  void close(Cuts cuts, Close how) {
    double before = at_;
    for (double* cut : {&cuts.begun, &cuts.up, &cuts.first, &cuts.last, &cuts.evidence})
      before = *cut = std::clamp(*cut, before, std::max(before, cuts.to));
    const StepTimes& s = steps();
    entry().steps = s.steps, entry().lost_steps = s.lost;
    spend(TimeCause::starting, cuts.up);
    double first_s = 0;
    if (s.steps + s.lost > 0) {
      const double mean_s = s.all_s() / double(s.steps + s.lost);
      first_s = std::min(std::isfinite(s.first_step_s) ? s.first_step_s : mean_s, cuts.first - cuts.up);
    }
    load(cuts.first - first_s);
    divide(s, cuts.last);
    if (how == Close::cut) {
      spend(s.steps + s.lost > 0 ? TimeCause::training : TimeCause::starting, cuts.to);
    } else if (how == Close::failed) {
      spend(TimeCause::detecting, cuts.evidence);
      spend(TimeCause::recovering, cuts.to);
    } else {
      if (std::isfinite(published_)) spend(TimeCause::saving, std::min(published_, cuts.to));
      spend(goes_again_ ? TimeCause::recovering : TimeCause::starting, cuts.to);
    }
    has_failed_ = how != Close::ended || goes_again_;
    open_ = goes_again_ = false;
  }

  void load(double until) {
    if (load_s_) spend_for(TimeCause::loading, *load_s_, until);
    const bool has_loaded = has_loaded_ || (loads_ && steps().steps + steps().lost > 0);
    spend(has_loaded && !load_s_ ? TimeCause::unknown : TimeCause::starting, until);
  }

  /// The time of the steps, by the shares of their parts.
  void divide(const StepTimes& s, double until) {
    if (!(until > at_)) return;
    const double all_s = s.all_s(), scale = (until - at_) / all_s;
    if (!(all_s > 0) || !std::isfinite(scale)) return spend(TimeCause::unknown, until);
    const double of_steps = s.parted_s > 0 ? s.steps_s / s.parted_s : 0;
    const double parts[] = {s.bubble_s * of_steps, s.stragglers_s * of_steps, s.unknown_s * of_steps};
    spend_for(TimeCause::evaluation, s.evaluation_s * scale, until);
    spend_for(TimeCause::saving, s.saving_s * scale, until);
    spend_for(TimeCause::recomputed, s.lost_s * scale, until);
    spend_for(TimeCause::bubble, parts[0] * scale, until);
    spend_for(TimeCause::stragglers, parts[1] * scale, until);
    spend_for(TimeCause::unknown, parts[2] * scale, until);
    spend(TimeCause::training, until);
  }

  void end(const TimeRecords::Event& event, double t) {
    if (supervised_from_) cut_off(t);
    if (open_) close(by_records(t), Close::ended);
    // What follows an attempt in order is the end of the run: its checkpoints are read again.
    spend_for(TimeCause::idle, event.waited_s.value_or(0), t);
    spend(has_failed_ ? TimeCause::recovering : TimeCause::starting, t);
    supervised_ = false;
    supervised_from_.reset();
    has_failed_ = false;
    is_begun_ = false;
  }

  const TimeRecords& records_;
  TimeLedger ledger_;
  double at_ = 0, seen_ = -std::numeric_limits<double>::infinity();
  bool supervised_ = false;
  std::optional<double> supervised_from_;  ///< another supervisor took the place of one that died
  double last_sign_ = 0;                   ///< of the one before
  bool is_begun_ = false;                  ///< the last entry is that of the next attempt
  bool has_failed_ = false;  ///< the attempt before did not end in order, or another one follows
  // Of the attempt that is open.
  bool open_ = false, attached_ = false, loads_ = false, has_loaded_ = false;
  bool goes_again_ =
      false;  ///< it ends so that another one follows: with other nodes, or from before a spike
  uint64_t epoch_ = 0;
  double begun_ = 0, up_ = NAN, published_ = NAN;
  std::optional<double> load_s_;
};

}  // namespace

const char* sentence_of(TimeCause cause) { return kSentences[size_t(cause)]; }

ByCause<double> TimeLedger::seconds() const {
  ByCause<double> all{};
  for (const AttemptTime& attempt : attempts)
    for (size_t i = 0; i < kTimeCauses; ++i) all[TimeCause(i)] += attempt.seconds[TimeCause(i)];
  return all;
}

ByCause<double> TimeLedger::rank_seconds() const {
  ByCause<double> all{};
  for (const AttemptTime& attempt : attempts)
    for (size_t i = 0; i < kTimeCauses; ++i)
      all[TimeCause(i)] += attempt.seconds[TimeCause(i)] * attempt.ranks;
  return all;
}

double TimeLedger::supervised_s() const {
  const ByCause<double> all = seconds();
  return all.sum() - all[TimeCause::stopped];
}

double TimeLedger::goodput() const {
  const ByCause<double> all = seconds();
  double counted = 0;
  for (size_t i = 0; i < kTimeCauses; ++i)
    if (counts(TimeCause(i))) counted += all[TimeCause(i)];
  return supervised_s() > 0 ? counted / supervised_s() : NAN;
}

// ---- records

void TimeRecords::event(const Json& event) {
  if (!event.is_object() || !event.contains("t") || !event["t"].is_number()) return;
  const auto kind = event_kind_of(event);
  const double unix_s = event["t"].get<double>();
  if (!kind || !divides(*kind)) {
    // A sign of life that moves the last one.
    if (!events_.empty() && events_.back().kind == EventKind::traced)
      events_.back().unix_s = std::max(unix_s, events_.back().unix_s);
    else if (!events_.empty())
      events_.push_back({.kind = EventKind::traced, .unix_s = unix_s});
    return;
  }
  events_.push_back({.kind = *kind,
                     .unix_s = unix_s,
                     .epoch = whole_at<uint64_t>(event, "epoch"),
                     .ranks = whole_at<int>(event, "ranks"),
                     .loads = !word_at(event, "tier").empty(),
                     .failed = *kind == EventKind::attempt && word_at(event, "outcome") != "ended",
                     .waited_s = known_at(event, "waited_s"),
                     .load_s = known_at(event, "seconds"),
                     .starting_s = seconds_at(event, "starting_s"),
                     .first_step_s = seconds_at(event, "first_step_s"),
                     .stepping_s = seconds_at(event, "stepping_s"),
                     .detecting_s = seconds_at(event, "detecting_s"),
                     .ending_s = seconds_at(event, "ending_s")});
}

void TimeRecords::step(const StepLine& line, bool counts) {
  if (line.step <= 0) return;
  StepTimes& s = steps_[line.attempt];
  const bool follows = before_epoch_ == line.attempt && before_step_ + 1 == line.step;
  const double evaluation_s = line.phases ? or_zero(line.phases->evaluation_s) : 0;
  const double saving_s = line.phases ? or_zero(line.phases->checkpoint_s) : 0;
  const double between_s = follows ? line.unix_s - before_unix_s_ - evaluation_s - saving_s : NAN;
  const double step_s = std::isfinite(between_s) ? std::max(0.0, between_s) : or_zero(line.step_s);
  before_step_ = line.step, before_epoch_ = line.attempt, before_unix_s_ = line.unix_s;
  if (!(s.first_unix_s <= line.unix_s) && std::isfinite(line.unix_s)) {
    s.first_unix_s = line.unix_s;
    s.first_step_s = line.step_s + evaluation_s;
  }
  if (!(s.last_unix_s >= line.unix_s) && std::isfinite(line.unix_s)) s.last_unix_s = line.unix_s;
  ++(counts ? s.steps : s.lost);
  (counts ? s.steps_s : s.lost_s) += step_s;
  s.evaluation_s += evaluation_s;
  s.saving_s += saving_s;
  if (!counts || !line.phases || !(line.step_s > 0)) return;
  const Phases& parts = *line.phases;
  s.parted_s += line.step_s;
  // Lines of older versions do not divide their waits.
  if (std::isnan(parts.pipeline_s))
    return void(s.unknown_s += std::min(line.step_s, or_zero(parts.communication_s)));
  const double bubble_s = std::min(line.step_s, or_zero(parts.pipeline_s));
  s.bubble_s += bubble_s;
  s.stragglers_s += std::min(line.step_s - bubble_s, or_zero(parts.stragglers_s));
}

const StepTimes& TimeRecords::steps_of(uint64_t epoch) const {
  static const StepTimes none;
  const auto found = steps_.find(epoch);
  return found == steps_.end() ? none : found->second;
}

int64_t TimeRecords::lost_steps() const {
  int64_t lost = 0;
  for (const auto& [epoch, steps] : steps_) lost += steps.lost;
  return lost;
}

TimeLedger ledger_of(const TimeRecords& records, double now_unix_s) {
  Bookkeeper keeper(records);
  for (const TimeRecords::Event& event : records.events()) keeper.take(event);
  TimeLedger ledger = keeper.finish(now_unix_s);
  ledger.lost_steps = records.lost_steps();
  return ledger;
}

std::string ledger_text(const TimeLedger& ledger) {
  const double supervised_s = ledger.supervised_s();
  if (!(supervised_s > 0)) return "";
  std::vector<std::pair<double, TimeCause>> rows;
  const ByCause<double> seconds = ledger.seconds();
  for (size_t i = 0; i < kTimeCauses; ++i)
    if (const TimeCause cause = TimeCause(i); cause != TimeCause::training && cause != TimeCause::stopped)
      if (seconds[cause] / supervised_s >= 0.0005) rows.emplace_back(seconds[cause], cause);
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text =
      fmt::format("goodput {:.1f} % of {}", 100 * ledger.goodput(), short_duration(supervised_s));
  for (size_t i = 0; i < rows.size(); ++i)
    text += fmt::format("{}{} {:.1f} %", i ? ", " : "; ", sentence_of(rows[i].second),
                        100 * rows[i].first / supervised_s);
  return text;
}

OrderedJson ledger_json(const TimeLedger& ledger) {
  // Milliseconds: what is finer says nothing about a run.
  const auto rounded = [](double seconds) { return std::round(seconds * 1e3) / 1e3; };
  const auto object = [&](const ByCause<double>& seconds, bool all) {
    OrderedJson j = OrderedJson::object();
    for (size_t i = 0; i < kTimeCauses; ++i)
      if (const double s = seconds[TimeCause(i)]; all || s > 0)
        j[std::string(word_of(TimeCause(i)))] = rounded(s);
    return j;
  };
  OrderedJson attempts = OrderedJson::array();
  for (const AttemptTime& attempt : ledger.attempts)
    attempts.push_back({{"epoch", attempt.epoch},
                        {"ranks", attempt.ranks},
                        {"begin", rounded(attempt.begin_unix_s)},
                        {"end", rounded(attempt.end_unix_s)},
                        {"steps", attempt.steps},
                        {"lost_steps", attempt.lost_steps},
                        {"seconds", object(attempt.seconds, false)}});
  const double goodput = ledger.goodput();
  return {{"wall_s", rounded(ledger.wall_s())},
          {"supervised_s", rounded(ledger.supervised_s())},
          {"goodput", std::isfinite(goodput) ? OrderedJson(goodput) : OrderedJson()},
          {"lost_steps", ledger.lost_steps},
          {"seconds", object(ledger.seconds(), true)},
          {"rank_seconds", object(ledger.rank_seconds(), true)},
          {"attempts", std::move(attempts)}};
}

}  // namespace trainctl
