#include "runtime/supervise/loop/run_alerts.h"

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/json.h"
#include "runtime/run/record/journal.h"

namespace trainctl {
namespace {

std::string own_host() {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  return host;
}

AlertRules::Run run_of(const SupervisedRun& run) {
  return {
      .run_id = run.plan.run_id, .directory = run.directory.path, .host = own_host(), .name = run.plan.name};
}

std::set<std::string> sent_before(const SupervisedRun& run, const AlertsSpec& spec) {
  if (!spec.exist()) return {};
  return sent_keys(lines_of(run.fs, run.directory.events()));
}

AlertSender::Options sender_of(const SupervisedRun& run, const AlertsSpec& spec) {
  AlertSender::Options options{.webhook = spec.webhook,
                               .command = spec.command,
                               .timeout_s = spec.timeout_seconds,
                               .tries = spec.tries};
  if (spec.has(AlertCause::disk) && spec.disk_free_percent > 0)
    options.folders = {run.directory.path, run.directory.checkpoints(run.plan.job.job.checkpoint)};
  return options;
}

}  // namespace

RunAlerts::RunAlerts(SupervisedRun& run)
    : run_(run),
      spec_(run.plan.job.job.observability.alerts),
      rules_(spec_, run_of(run), sent_before(run, spec_)),
      sender_(sender_of(run, spec_)) {}

void RunAlerts::send(std::optional<Alert> alert) {
  if (alert) sender_.send(std::move(*alert));
}

void RunAlerts::event(EventKind kind, const std::string& json) {
  send(rules_.event(kind, json, run_.clock.unix_s()));
}

void RunAlerts::step(const StepLine& line) {
  for (Alert& alert : rules_.step(line, run_.clock.unix_s())) sender_.send(std::move(alert));
}

void RunAlerts::turn() {
  if (!spec_.exist()) return;
  const RunStatus& status = run_.log.status();
  const bool trains =
      !status.ended() && status.state != RunState::stopping && status.state != RunState::ending;
  for (Alert& alert : rules_.tick(trains, run_.clock.unix_s())) sender_.send(std::move(alert));
  if (const auto free = sender_.least_free())
    send(rules_.disk(free->first, free->second, run_.clock.unix_s()));
  record();
}

void RunAlerts::finish() {
  if (!spec_.exist()) return;
  sender_.finish(spec_.timeout_seconds);
  record();
}

void RunAlerts::record() {
  for (const AlertSender::Outcome& outcome : sender_.take()) {
    const Alert& alert = outcome.alert;
    Json fields{{"key", alert.key}, {"step", alert.step}};
    if (outcome.problem.is_none()) {
      fields["text"] = alert.text;
      run_.log.event(EventKind::alert_sent, dump_json(fields));
      continue;
    }
    fields["reason"] = outcome.problem.text();
    fields["text"] = fmt::format("\"{}\" was not delivered: {}", alert.text, outcome.problem.text());
    run_.log.event(EventKind::alert_failed, dump_json(fields));
    run_.log.console().note(fmt::format(" ! alert not delivered: {}", outcome.problem.text()));
  }
}

}  // namespace trainctl
