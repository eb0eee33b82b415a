#include "runtime/supervise/loop/run_epochs.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/run/record/events.h"
#include "runtime/run/record/loss_record.h"
#include "runtime/supervise/history/going_back.h"

namespace trainctl {

RunEpochs::RunEpochs(SupervisedRun& run, const RunSource& source, RunCheckpoints& checkpoints)
    : run_(run), source_(source), checkpoints_(checkpoints) {}

void RunEpochs::restart(const StartAttempt& start, int restarts) {
  RunStatus& status = run_.log.status();
  status.state = RunState::restarting;
  status.reason = start.why;
  status.restarts = restarts;
  run_.log.event(RestartEvent{.restart = restarts,
                              .from_step = source_.step(),
                              .lost_steps = std::max<int64_t>(0, status.step - source_.step()),
                              .nodes = start.nodes,
                              .data = int(start.width.data),
                              .reason = start.why});
  run_.log.console().note(fmt::format(" ! {}", start.why));
  run_.log.console().note("   continuing from " + source_.state().text());
}

void RunEpochs::begin(int ranks) {
  RunStatus& status = run_.log.status();
  if (status.state == RunState::waiting) status.reason.clear();  // what it waited for has come
  status.epoch = last_epoch(run_.fs, run_.directory) + 1;
  status.step = source_.step();
  status.step_unix_s = 0;
  checkpoints_.pause();
  const int64_t moved = set_aside_beyond(
      run_.fs, run_.directory, run_.plan.job.job.checkpoint,
      {.epoch = status.epoch, .step = source_.step(), .source = source_.state().folder}, run_.log.console());
  checkpoints_.begin(status.epoch, source_.step());
  status.saved_step = source_.durable_step();
  status.staged_step = source_.state().memory ? source_.step() : -1;
  status.partner_step = -1;  // partners are chosen anew
  run_.log.reopen_metrics();
  run_.log.event(StartEvent{.epoch = status.epoch,
                            .ranks = ranks,
                            .from_step = source_.step(),
                            .tier = source_.state().tier(),
                            .checkpoint = source_.state().folder,
                            .numerics = run_.plan.numerics,
                            .superseded_steps = moved,
                            .waited_s = run_.log.take_waited_s()});
}

void RunEpochs::attach(const AttemptFile& file) {
  RunStatus& status = run_.log.status();
  if (const auto known = read_status(run_.fs, run_.directory.status())) {
    status.saved_step = known->saved_step;
    status.restarts = known->restarts;
  }
  // Newer than the status: what the supervisor before has taken.
  status.step = std::max(status.step, newest_step(run_.fs, run_.directory));
  status.epoch = file.epoch;
  checkpoints_.attach(file.epoch);
  run_.log.console().note(fmt::format("  the ranks of attempt {} are alive: attaching to them", file.epoch));
}

uint64_t last_epoch(FileSystem& fs, const RunDirectory& run) {
  const auto newest = newest_attempt(fs, run);
  return newest ? newest->file.epoch : 0;
}

Remedies applied_remedies(FileSystem& fs, const RunDirectory& run) {
  const auto newest = newest_attempt(fs, run);
  if (!newest || newest->damage.is_none()) return newest ? newest->file.remedies : Remedies{};
  double begun_unix_s = 0;
  for (const std::string& line : lines_of(fs, run.events()))
    if (const Json event = try_parse_json(line); event_kind_of(event) == EventKind::start)
      begun_unix_s = event.value("t", 0.0);
  LossRecord record = read_loss_record(fs, run);
  std::erase_if(record.decisions, [&](const LossDecision& d) { return d.unix_s > begun_unix_s; });
  return record.remedies();
}

std::optional<NewestAttempt> newest_attempt(FileSystem& fs, const RunDirectory& run) {
  if (!fs.exists(run.attempt())) return std::nullopt;
  try {
    return NewestAttempt{.file = AttemptFile::from_json(fs.read_text(run.attempt()))};
  } catch (const Error& error) {
    NewestAttempt found{.damage = Problem(error.what())};
    for (const std::string& line : lines_of(fs, run.events())) {
      const Json event = try_parse_json(line);
      if (event_kind_of(event) != EventKind::start) continue;
      const auto start = record_of<StartEvent>(event);
      found.file.epoch = std::max(found.file.epoch, start.epoch);
      found.file.beginnings =
          with_beginning(std::move(found.file.beginnings), {start.epoch, start.from_step});
    }
    return found;
  }
}

int64_t newest_step(FileSystem& fs, const RunDirectory& run) {
  const std::vector<std::string> steps = lines_of(fs, run.metrics());
  return steps.empty() ? 0 : step_view(steps.back()).step;
}

}  // namespace trainctl
