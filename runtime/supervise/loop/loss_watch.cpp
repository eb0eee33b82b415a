#include "runtime/supervise/loop/loss_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/run/record/events.h"
#include "runtime/run/record/journal.h"

namespace trainctl {
namespace {

EventKind kind_of(LossTrouble trouble) {
  switch (trouble) {
    case LossTrouble::spike: return EventKind::loss_spike;
    case LossTrouble::divergence: return EventKind::loss_divergence;
    case LossTrouble::plateau: return EventKind::loss_plateau;
    case LossTrouble::not_finite: return EventKind::loss_not_finite;
    case LossTrouble::experts: return EventKind::experts_collapsed;
  }
  return EventKind::loss_spike;
}

bool is_of_monitor(EventKind kind) {
  return kind == EventKind::loss_spike || kind == EventKind::loss_divergence ||
         kind == EventKind::loss_plateau || kind == EventKind::loss_not_finite ||
         kind == EventKind::experts_collapsed;
}

std::string event_of(const LossIncident& incident) {
  Json fields = record_json(incident);
  fields["step"] = incident.last;
  fields["text"] = incident.text();
  return dump_json(fields);
}

std::string event_of(const LossDecision& decision) {
  Json fields = record_json(decision);
  fields.erase("t");
  fields["step"] = decision.incident.last;
  fields["text"] = decision.text();
  return dump_json(fields);
}

std::vector<LossIncident> recorded_incidents(const std::vector<std::string>& events) {
  std::vector<LossIncident> incidents;
  for (const std::string& line : events) {
    const Json event = try_parse_json(line);
    const auto kind = event_kind_of(event);
    if (!kind || !is_of_monitor(*kind)) continue;
    try {
      incidents.push_back(record_of<LossIncident>(event));
    } catch (const BadRecord&) {
      // A line that another version wrote.
    }
  }
  return incidents;
}

}  // namespace

LossWatch::LossWatch(SupervisedRun& run, const Remedies& remedies)
    : run_(run),
      spec_(run.plan.job.job.observability.loss_monitor),
      global_sequences_(run.plan.job.job.batch.global_sequences),
      monitor_(spec_, global_sequences_),
      record_(read_loss_record(run.fs, run.directory)),
      applied_(remedies.count()),
      known_(recorded_incidents(lines_of(run.fs, run.directory.events()))) {
  for (const std::string& line : lines_of(run.fs, run.directory.events())) {
    const Json event = try_parse_json(line);
    if (event_kind_of(event) == EventKind::start) decided_from_ = record_of<StartEvent>(event).from_step;
  }
  look_for_pending();
  show();
}

std::string LossWatch::GoBack::text(int64_t newest_step) const {
  if (newest_step <= at_most) return why;
  return fmt::format("{}; the run was at step {}: at least {} again", why, newest_step,
                     count_of(newest_step - at_most, "step"));
}

void LossWatch::replay() {
  constexpr int64_t kWindows = 20;  // only good steps fill a window
  if (spec_.policy == LossPolicy::off) return;
  const std::vector<std::string> lines = lines_of(run_.fs, run_.directory.metrics());
  const int64_t most =
      kWindows * (spec_.window + spec_.diverged_steps) + spec_.plateau_steps + spec_.lead_steps;
  for (size_t i = size_t(std::max<int64_t>(0, int64_t(lines.size()) - most)); i < lines.size(); ++i)
    if (const StepLine line = step_view(lines[i]); line.step > 0) step(line);
}

void LossWatch::begin(int64_t step, bool loads) {
  applied_ = int64_t(record_.decisions.size());
  look_for_pending();
  decided_from_ = step;
  monitor_ = LossMonitor(spec_, global_sequences_);
  replay();
  if (loads) monitor_.loaded(step);
  show();
}

void LossWatch::step(const StepLine& line) {
  // The steps that an attempt still makes after the decision to go back are given up.
  if (pending()) return;
  for (const LossIncident& incident : monitor_.step(line)) found(incident, line.step);
}

void LossWatch::found(const LossIncident& incident, int64_t step) {
  // First the decision: it is made once, and an event without it would look as if nothing was decided.
  if (step > decided_from_) decide(incident);
  const auto same = [&](const LossIncident& other) { return other.same_as(incident); };
  if (std::any_of(known_.begin(), known_.end(), same)) return;
  known_.push_back(incident);
  run_.log.status().loss_trouble = incident.text();
  run_.log.event(kind_of(incident.kind), event_of(incident));
  run_.log.console().note(" ! " + incident.text());
}

void LossWatch::decide(const LossIncident& incident) {
  auto decision = decision_on(incident, spec_, global_sequences_, record_);
  if (!decision || pending()) return;
  if (int64_t(record_.decisions.size()) >= spec_.max_rollbacks) {
    spent_ = Problem(fmt::format(
        "{}; the run has gone back for its loss {} time{} (observability.loss_monitor.max_rollbacks), and "
        "that was not enough: look at its data with `trainctl data spikes {}`, then give a higher limit, or "
        "begin a branch with a lower schedule.lr",
        incident.text(), record_.decisions.size(), record_.decisions.size() == 1 ? "" : "s", run_.plan.name));
    return;
  }
  if (!has_state_before(decision->back_to) && !never_saved_before(decision->back_to))
    return unanswered(incident, fmt::format("its checkpoints of step {} and before are removed "
                                            "(checkpoint.keep_last)",
                                            decision->back_to));
  decision->unix_s = run_.clock.unix_s();
  LossRecord record = record_;
  record.decisions.push_back(*decision);
  try {
    write_loss_record(run_.fs, run_.directory, record);
  } catch (const Error& error) {  // a full disk does not end a run
    return unanswered(incident, fmt::format("the decision to go back cannot be recorded: {}", error.what()));
  }
  record_ = std::move(record);
  look_for_pending();
  run_.log.event(EventKind::loss_rollback, event_of(*decision));
  show();
}

void LossWatch::require_not_spent() const {
  if (spent_.exists()) throw Error(ErrorCode::kDiverged, spent_.text());
}

void LossWatch::unanswered(const LossIncident& incident, const std::string& why) {
  record_.unanswered.push_back(incident);
  try {
    write_loss_record(run_.fs, run_.directory, record_);
  } catch (const Error&) {
    // A full disk: the next supervisor says it again.
  }
  const std::string text = fmt::format(
      "{}; the run goes on as it is, because {}: keep more checkpoints, or look at its data with `trainctl "
      "data spikes {}` and begin a branch",
      incident.text(), why, run_.plan.name);
  run_.log.event(EventKind::loss_unanswered, dump_json(Json{{"step", incident.last}, {"text", text}}));
  run_.log.console().note(" ! " + text);
}

void LossWatch::withdraw() {
  const std::vector<LossDecision> taken_back(record_.decisions.begin() + ptrdiff_t(applied_),
                                             record_.decisions.end());
  record_.decisions.resize(size_t(applied_));
  look_for_pending();
  for (const LossDecision& decision : taken_back)
    unanswered(decision.incident, fmt::format("no state of step {} or before can be used", decision.back_to));
  show();
}

void LossWatch::look_for_pending() {
  pending_.reset();
  if (applied_ >= int64_t(record_.decisions.size())) return;
  // Of several that were never applied, the earliest state is before all of them.
  GoBack back{.at_most = INT64_MAX, .why = record_.decisions.back().text()};
  for (size_t i = size_t(applied_); i < record_.decisions.size(); ++i)
    back.at_most = std::min(back.at_most, record_.decisions[i].back_to);
  back.may_begin_again = never_saved_before(back.at_most);
  pending_ = back;
}

bool LossWatch::has_state_before(int64_t step) const {
  if (run_.plan.start && run_.plan.start->step <= step && never_saved_before(step)) return true;
  const std::string checkpoints = run_.directory.checkpoints(run_.plan.job.job.checkpoint);
  if (!run_.fs.exists(checkpoints)) return false;
  const auto steps = ckpt::list_steps(run_.fs, checkpoints);
  return std::any_of(steps.begin(), steps.end(), [&](int64_t saved) { return saved <= step; });
}

bool LossWatch::never_saved_before(int64_t step) const {
  for (const std::string& line : lines_of(run_.fs, run_.directory.events())) {
    const Json event = try_parse_json(line);
    if (event_kind_of(event) == EventKind::checkpoint && event.value("step", int64_t{0}) <= step)
      return false;
  }
  return true;
}

void LossWatch::show() const {
  RunStatus& status = run_.log.status();
  status.rollbacks = int64_t(record_.decisions.size());
  status.skipped_samples = record_.skipped_samples();
  if (status.loss_trouble.empty() && !record_.decisions.empty())
    status.loss_trouble = record_.decisions.back().incident.text();
}

}  // namespace trainctl
