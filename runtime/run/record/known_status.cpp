#include "runtime/run/record/known_status.h"

#include <fmt/format.h>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/run/record/events.h"
#include "runtime/run/record/journal.h"

namespace trainctl {
namespace {

Json object_of(const std::string& text) {
  Json value = try_parse_json(text);
  return value.is_object() ? value : Json::object();
}

void take_event(const Json& event, RunStatus& status) {
  status.updated_unix_s = event.value("t", status.updated_unix_s);
  const auto kind = event_kind_of(event);
  if (kind == EventKind::start) {
    status.state = RunState::running;
    status.exit_code = -1;
    status.reason.clear();
    status.started_unix_s = status.updated_unix_s;
    status.epoch = record_of<StartEvent>(event).epoch;
  } else if (kind == EventKind::restart) {
    const auto restart = record_of<RestartEvent>(event);
    status.restarts = restart.restart;
    status.reason = restart.reason;
  } else if (kind == EventKind::end) {
    const auto end = record_of<EndEvent>(event);
    status.state = end.state;
    status.exit_code = end.exit_code;
    status.reason = end.reason;
  }
}

std::string checkpoint_folder(const RunDirectory& run, const Json& job) try {
  const Json* const dir = job.find_at("/checkpoint/dir");
  const std::string elsewhere = dir ? dir->get<std::string>() : "";
  return elsewhere.empty() ? run.file("ckpt") : elsewhere;
} catch (const JsonError&) {
  return run.file("ckpt");  // job.json is damaged
}

RunStatus rebuild(FileSystem& fs, const RunDirectory& run, const std::vector<std::string>& events) {
  RunStatus status{.run_id = folder_name(run), .directory = run.path};
  if (const auto identity = read_identity(fs, run)) status.lineage_json = identity->lineage_json;
  for (const std::string& line : events) take_event(object_of(line), status);
  for (const std::string& line : lines_of(fs, run.metrics()))
    if (const int64_t step = object_of(line).value("step", int64_t(0)); step > status.step) {
      status.step = step;
      status.step_unix_s = status.updated_unix_s;
      status.last_step = step_view(line);
    }
  const Json job = object_of(fs.read_text(run.job()));
  if (const Json* const steps = job.find_at("/schedule/total_steps")) status.total_steps = *steps;
  if (const auto newest = ckpt::open_latest(fs, checkpoint_folder(run, job), -1, nullptr)) status.saved_step = newest->state().step;
  if (status.state != RunState::finished) status.advice = "trainctl resume " + command_name(run);
  return status;
}

}  // namespace

std::string checkpoint_folder(FileSystem& fs, const RunDirectory& run) {
  return checkpoint_folder(run, object_of(fs.read_text(run.job())));
}

std::vector<int64_t> checkpoint_steps(FileSystem& fs, const RunDirectory& run) {
  const std::string folder = checkpoint_folder(fs, run);
  return fs.is_directory(folder) ? ckpt::list_steps(fs, folder) : std::vector<int64_t>{};
}

std::optional<KnownStatus> status_of_run(FileSystem& fs, const RunDirectory& run) {
  std::string note = run.status() + " is missing";
  try {
    if (const auto status = read_status(fs, run.status())) return KnownStatus{*status, ""};
  } catch (const Error& error) {
    note = error.what();
  }
  const std::vector<std::string> events = lines_of(fs, run.events());
  if (events.empty()) return std::nullopt;
  try {
    return KnownStatus{rebuild(fs, run, events), note + "; shown is what events, metrics and checkpoints say"};
  } catch (const BadRecord& error) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}; and its other records are damaged, too: {}", note, error.what()));
  } catch (const JsonError& error) {
    throw Error(ErrorCode::kIo, fmt::format("{}; and its other records are damaged, too: {}", note, error.what()));
  }
}

std::vector<std::string> superseded_lines(FileSystem& fs, const RunDirectory& run) {
  std::vector<std::string> lines;
  for (const ckpt::Superseded& aside : ckpt::list_superseded(fs, checkpoint_folder(fs, run)))
    lines.push_back(ckpt::text_of(aside));
  return lines;
}

}  // namespace trainctl
