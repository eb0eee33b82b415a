#include "runtime/supervise/loop/run_epochs.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/run/record/events.h"
#include "runtime/spec/lineage.h"
#include "runtime/supervise/history/going_back.h"
#include "runtime/supervise/history/save_history.h"
#include "runtime/supervise/loop/attempt_places.h"

namespace trainctl {

RunEpochs::RunEpochs(SupervisedRun& run, const RunSource& source, RunCheckpoints& checkpoints)
    : run_(run), source_(source), checkpoints_(checkpoints) {}

AttemptOptions RunEpochs::options(const ParallelSpec& parallelism) {
  AttemptOptions options = attempt_options(run_.plan, run_.directory, parallelism, run_.last_step);
  options.saves.must_hold = run_.lock.check();
  options.file.epoch = last_epoch(run_.fs, run_.directory) + 1;
  source_.put_into(options.file);
  options.file.lineage_json = lineage_at(run_.plan.lineage_json, source_.step());
  recall_saves(run_.fs, run_.directory, options.file, run_.log.status());
  return options;
}

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
  run_.log.console().note("   continuing from " + source_.text());
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
      {.epoch = status.epoch, .step = source_.step(), .source = source_.folder()}, run_.log.console());
  checkpoints_.begin(status.epoch, source_.step());
  status.saved_step = source_.durable_step();
  status.staged_step = source_.memory() ? source_.step() : -1;
  status.partner_step = -1;  // partners are chosen anew
  run_.log.reopen_metrics();
  run_.log.event(StartEvent{.epoch = status.epoch,
                            .ranks = ranks,
                            .from_step = source_.step(),
                            .tier = source_.tier(),
                            .checkpoint = source_.folder(),
                            .numerics = run_.plan.numerics,
                            .superseded_steps = moved});
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
  checkpoints_.begin(file.epoch, INT64_MAX);
  run_.log.console().note(fmt::format("  the ranks of attempt {} are alive: attaching to them", file.epoch));
}

uint64_t last_epoch(FileSystem& fs, const RunDirectory& run) {
  const auto newest = newest_attempt(fs, run);
  return newest ? newest->file.epoch : 0;
}

std::optional<NewestAttempt> newest_attempt(FileSystem& fs, const RunDirectory& run) {
  if (!fs.exists(run.attempt())) return std::nullopt;
  try {
    return NewestAttempt{.file = AttemptFile::from_json(fs.read_text(run.attempt()))};
  } catch (const Error& error) {
    NewestAttempt found{.damage = Problem(error.what())};
    for (const std::string& line : lines_of(fs, run.events())) {
      const Json event = try_parse_json(line);
      if (!event.is_object() || event.value("kind", "") != word_of(EventKind::start)) continue;
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
