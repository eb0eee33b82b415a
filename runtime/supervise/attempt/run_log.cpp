#include "runtime/supervise/attempt/run_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/record.h"
#include "runtime/base/units.h"
#include "runtime/run/record/burn_in_record.h"
#include "runtime/run/views/prometheus.h"

namespace trainctl {
namespace {

constexpr double kStatusIntervalS = 1.0;
/// Of the records of earlier attempts, with each status: the rest is read with the next ones.
constexpr uint64_t kMostRecordsBytes = 8 << 20;
/// A busy file system answers sooner.
constexpr double kQuietS = 5;
/// One that answers no sooner gets no numbers of every rank and expert any more, so that they fill no memory.
constexpr double kLongQuietS = 30;
/// For the last records of a run.
constexpr double kSyncS = 30;
/// Of each of the two files with the numbers of every rank, and of every expert.
constexpr int64_t kMostRankMetricsBytes = 64 << 20;

RunState state_of(const Supervision& supervision) {
  switch (supervision.phase()) {
    case Supervision::Phase::starting: return RunState::starting;
    case Supervision::Phase::running:
      return supervision.stop_level() == StopLevel::none ? RunState::running : RunState::stopping;
    default: return RunState::ending;
  }
}

}  // namespace

RunLog::Written::Written(FileSystem& fs, const RunDirectory& run)
    : metrics(std::make_unique<Journal>(run.metrics())),
      rank_metrics(run.file("metrics.ranks.jsonl"), run.file("metrics.ranks.1.jsonl"), kMostRankMetricsBytes),
      expert_metrics(run.file("metrics.experts.jsonl"), run.file("metrics.experts.1.jsonl"),
                     kMostRankMetricsBytes),
      events(run.events()),
      curves(run.path),
      time(fs, run) {}

RunLog::RunLog(FileSystem& fs, Clock& clock, const RunDirectory& run, Console& console)
    : fs_(fs),
      clock_(clock),
      run_(run),
      console_(console),
      written_files_(std::make_shared<Written>(fs, run)),
      summary_(clock.unix_s()) {
  status_.directory = run.path;
}

void RunLog::event(EventKind kind, const std::string& json) {
  files_.ask([files = written_files_, line = event_line(clock_.unix_s(), kind, json)] {
    files->events.append(line);
  });
  check_journals();
  if (watch_.event) watch_.event(kind, json);
}

void RunLog::supervisor_begins(const std::string& take_over, const std::string& before) {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  event(EventKind::supervisor, dump_json(Json{{"pid", ::getpid()}, {"host", host}}));
  if (take_over.empty()) return;
  event(EventKind::takeover,
        dump_json(Json{{"host", host}, {"reason", take_over}, {"before", before}}));
  console_.note(fmt::format("  {}: this supervisor takes the place of the one before{}", take_over,
                            before.empty() ? "" : " (" + before + ")"));
}

void RunLog::rank_event(EventKind kind, const std::string& json) {
  event(kind, json);
  const Json fields = try_parse_json(json);
  if (!fields.is_object()) return;
  if (kind == EventKind::interval) return save_interval(record_of<SaveInterval>(fields));
  if (kind == EventKind::replay_differs || kind == EventKind::replicas_judged)
    return console_.note(" ! " + fields.value("text", "?"));
  if (kind == EventKind::burn_in) {
    const auto record = record_of<BurnInRecord>(fields);
    return console_.note(
        fmt::format("{}{} ({:.1f} s)", record.is_well() ? "   " : " ! ", record.text, record.seconds));
  }
  if (kind == EventKind::interval_short)
    return console_.note(" ! " + record_of<ShortInterval>(fields).text());
  if (kind == EventKind::memory_one && !std::exchange(told_memory_off_, true))
    return console_.note("   one copy of the state in memory instead of two: " + fields.value("reason", "?"));
  if (kind == EventKind::memory_off && !std::exchange(told_memory_off_, true))
    return console_.note("   no copies of the state in memory: " + fields.value("reason", "?"));
  if (kind == EventKind::save_failed)
    return copy_failed(fields.value("tier", ""), fields.value("step", int64_t(-1)), fields.value("rank", -1),
                       fields.value("reason", "?"));
  if (kind != EventKind::save_retry) return;
  console_.note(fmt::format("   attempt {} at the last save follows in {} s; make room or repair the disk, or stop the run to give "
                            "its last steps up",
                            fields.value("attempt", 0), fields.value("wait_s", 0.0)));
}

/// Said once, until copies are made again: a partner that is gone fails each of them.
void RunLog::copy_failed(const std::string& tier, int64_t step, int rank, const std::string& reason) {
  const bool is_second = tier == word_of(SaveTier::partner);
  if (std::exchange(is_second ? failed_second_copy_ : failed_copy_, step) >= 0) return;
  console_.note(
      fmt::format(" ! rank {}: the {} of step {} failed, training goes on and it is tried again: {}", rank,
                  is_second ? "second copy, on another node," : "copy in memory", step, reason));
}

void RunLog::copies_made(const StepLine& line) {
  if (failed_copy_ >= 0 && line.staged_step.value_or(-1) >= failed_copy_) failed_copy_ = -1;
  if (failed_second_copy_ < 0 || line.partner_step.value_or(-1) < failed_second_copy_) return;
  failed_second_copy_ = -1;
  console_.note(fmt::format("   second copies are made again (step {})", *line.partner_step));
}

void RunLog::save_interval(const SaveInterval& now) {
  replace_interval(status_.save_intervals, now);
  // A given interval is what the spec says; its cost is in the status.
  const bool is_first = now.reason == IntervalReason::unmeasured;
  if (!now.automatic() && !is_first) return;
  const std::string to =
      now.tier == SaveTier::directory ? "" : fmt::format(" to the {}", word_of(now.tier));
  console_.note(fmt::format(" ▸{}{} {}", is_first ? "" : " saves", to, now.text()));
}

void RunLog::step(const StepRecord& record) {
  const StepLine& line = record.line;
  status_.step = line.step;
  status_.step_unix_s = clock_.unix_s();
  const std::optional<ExpertSummary> experts = std::move(status_.last_step.experts);
  status_.last_step = line;
  if (!line.tasks.empty()) status_.tasks = line.tasks, status_.tasks_step = line.step;
  if (!line.experts) status_.last_step.experts = experts;  // not every step has them
  if (line.staged_step) status_.staged_step = *line.staged_step;
  if (line.partner_step) {
    status_.partner_step = *line.partner_step;
    status_.partner_nodes = line.partner_nodes;
  }
  copies_made(line);
  pace_.longest_step_s = std::max(pace_.longest_step_s, line.step_s);  // NaN is not larger
  // The numbers of every rank and expert are many, and nothing depends on them.
  const bool is_quiet = files_.quiet_s() > kLongQuietS;
  const std::string ranks = is_quiet ? "" : record.ranks, of_experts = is_quiet ? "" : record.experts;
  files_.ask([files = written_files_, ranks, of_experts, line, unix_s = clock_.unix_s()] {
    files->metrics->append(step_line_text(line));
    if (!ranks.empty()) files->rank_metrics.append(ranks);
    if (!of_experts.empty()) files->expert_metrics.append(of_experts);
    files->curves.step(line, unix_s);
  });
  check_journals();
  summary_.step(line, clock_.unix_s());
  console_.step(line, record.log, clock_.unix_s());
  notice_slow_ranks(record);
  for (const UnevenExperts::Notice& notice : uneven_.step(line)) {
    event(notice.kind, notice.json);
    console_.note(notice.line);
  }
  if (watch_.step) watch_.step(line);
}

void RunLog::notice_slow_ranks(const StepRecord& record) {
  if (!looks_for_slow_) return;
  const auto nodes = [this] {
    std::vector<NodeRanks> ranks;
    for (const NodeStatus& node : nodes_ ? nodes_() : std::vector<NodeStatus>{})
      if (node.count > 0) ranks.push_back({node.name, node.first, node.count});
    return ranks;
  };
  for (const SlowRanks::Notice& notice :
       slow_.step(record.line.step, record.times, record.stages, nodes, record.line.step_s)) {
    console_.note(notice.line);  // before what follows from the event
    event(notice.kind, notice.json);
  }
}

void RunLog::saved(const SaveOutcome& outcome, double seconds) {
  if (!outcome.ok) {
    save_failed_step_ = outcome.step;
    save_failure_ = outcome.message;
    event(EventKind::save_failed, dump_json(Json{{"step", outcome.step},
                                                           {"seconds", seconds},
                                                           {"bytes", outcome.bytes},
                                                           {"reason", outcome.message}}));
    const bool goes_on = outcome.step < last_step_ && status_.state != RunState::stopping;
    console_.note(fmt::format(" ! checkpoint step {} failed{}: {}", outcome.step,
                              goes_on ? ", training goes on" : "", outcome.message));
    return;
  }
  pace_.saves_s.push_back(seconds);
  event(CheckpointEvent{.step = outcome.step,
                        .seconds = seconds,
                        .bytes = outcome.bytes,
                        .cpu_seconds = outcome.cpu_s,
                        .root_hash = outcome.message});
  // An older one may be published later.
  status_.saved_step = std::max(status_.saved_step, outcome.step);
  console_.note(fmt::format(" ▸ checkpoint step {} · {}B · {:.2f} s", outcome.step,
                            short_number(double(outcome.bytes)), seconds));
}

void RunLog::saved_before(const SaveOutcome& outcome) {
  const auto lines = files_.ask([&fs = fs_, path = run_.events()] { return lines_of(fs, path); })
                         .value_or(std::vector<std::string>{});
  // Of this attempt: one before it may have saved that step, too.
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const Json event = try_parse_json(*line);
    const auto kind = event_kind_of(event);
    if (!event.is_object() || kind == EventKind::start) break;
    if (kind != EventKind::checkpoint || record_of<CheckpointEvent>(event).step != outcome.step) continue;
    status_.saved_step = std::max(status_.saved_step, outcome.step);
    return;
  }
  saved(outcome, 0);
}

void RunLog::paused(double seconds, const std::string& run_directory) {
  event(EventKind::supervisor_paused, dump_json(Json{{"epoch", status_.epoch}, {"seconds", seconds}}));
  console_.note(fmt::format(
      " ! this supervisor stood still for {:.1f} s (it was stopped, or {} did not answer); the ranks went on",
      seconds, run_directory));
}

void RunLog::publishing_hangs(const std::string& text) {
  event(EventKind::save_hangs, dump_json(Json{{"reason", text}}));
  console_.note(" ! " + text);
}

void RunLog::reopen_metrics() {
  files_.ask([files = written_files_, path = run_.metrics()] {
    files->metrics = std::make_unique<Journal>(path);
    files->curves.begin_next();
  });
  slow_.forget();
  uneven_.forget();
  failed_copy_ = failed_second_copy_ = -1;
}

/// Says once that the records wait; with the answer the event is written, too.
void RunLog::check_answers() {
  if (!files_.hangs()) told_silence_ = false;
  if (files_.quiet_s() < kQuietS || std::exchange(told_silence_, true)) return;
  publishing_hangs(
      fmt::format("{} has not answered for {:.0f} s; the ranks go on, and what is recorded of them "
                  "waits in memory",
                  run_.path, files_.quiet_s()));
}

void RunLog::update(const Supervision& supervision, bool now) {
  if (watch_.turn) watch_.turn();
  check_answers();
  if (!now && clock_.monotonic_s() - written_s_ < kStatusIntervalS) return;
  status_.state = state_of(supervision);
  const bool many = supervision.ranks().size() > kMostRanksInStatus;
  const bool ranks_due = !many || now || clock_.monotonic_s() - ranks_written_s_ >= kRanksIntervalS;
  if (!ranks_due) return write(false);
  ranks_written_s_ = clock_.monotonic_s();
  status_.ranks.resize(supervision.ranks().size());
  const double offset_s = clock_.unix_s() - clock_.monotonic_s();
  for (size_t i = 0; i < status_.ranks.size(); ++i) {
    const RankView& view = supervision.ranks()[i];
    status_.ranks[i] = {.rank = int(i),
                        .pid = view.pid,
                        .phase = view.phase,
                        .host = view.host,
                        .activity = view.activity,
                        .stopped = view.stopped,
                        .heard_unix_s = view.heard_s > 0 ? view.heard_s + offset_s : 0};
  }
  write(true);
}

void RunLog::waiting(const std::string& why) {
  if (watch_.turn) watch_.turn();
  if (clock_.monotonic_s() - written_s_ < kStatusIntervalS) return;
  status_.state = RunState::waiting;
  status_.reason = why;
  status_.ranks.clear();
  write(true);
}

void RunLog::write(bool with_ranks) {
  if (!files_.hangs()) post_status(with_ranks);
}

void RunLog::post_status(bool with_ranks) {
  written_s_ = clock_.monotonic_s();
  status_.updated_unix_s = clock_.unix_s();
  if (nodes_) status_.nodes = nodes_();
  files_.ask([&fs = fs_, run = run_, files = written_files_, status = status_, with_ranks] {
    try {
      write_status(fs, run.status(), status, with_ranks);
      const bool knows_time = files->time.read(kMostRecordsBytes);
      const TimeLedger time = ledger_of(files->time.records(), status.ended() ? NAN : status.updated_unix_s);
      replace_view(fs, run.prometheus(), prometheus_text(status, knows_time ? &time : nullptr));
    } catch (const std::exception&) {
      // A view only; the journals tell of a broken disk.
    }
  });
}

void RunLog::finish() {
  post_status(true);
  files_.ask([files = written_files_] {
    files->metrics->sync();
    files->events.sync();
  });
  if (!files_.finish(kSyncS))
    console_.note(fmt::format(" ! the run's records are incomplete: {} has not answered for {:.0f} s",
                              run_.path, files_.quiet_s()));
  check_journals();
}

void RunLog::await_files() {
  while (!files_.finish(kSyncS)) check_answers();
}

void RunLog::check_journals() {
  if (told_journal_error_ || !files_.is_idle()) return;
  const Problem error = written_files_->error();
  if (error.is_none()) return;
  told_journal_error_ = true;
  console_.note(" ! the run's records are incomplete: " + error.text());
}

}  // namespace trainctl
