#include "runtime/supervise/loop/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"
#include "runtime/supervise/care/run_store.h"
#include "runtime/supervise/care/usable_checkpoint.h"
#include "runtime/supervise/decide/verified_state.h"

namespace trainctl {
namespace {

/// Longest wait at the end of a run whose job has no more time.
constexpr double kHasteS = 10;
constexpr double kTurnS = 0.1;
/// A wait shorter than this needs no line.
constexpr double kSilentS = 2;
/// One more ends the run.
constexpr int kMostNotFiniteSaves = 3;

CareOptions care_options(const SupervisePlan& plan, const RunDirectory& run, const std::string& run_id,
                         const std::string& store, const LockWatch& lock) {
  const CheckpointSpec& spec = plan.job.job.checkpoint;
  return {.run_id = run_id,
          .directory = run.checkpoints(plan.job.job.checkpoint),
          .marks_path = run.file("checkpoints.json"),
          .keep_last = spec.keep_last,
          .keep_every_steps = spec.keep_every_steps,
          .store = store,
          .store_every_steps = spec.store_every_steps,
          .store_rests = spec.store_when == EverySteps::automatic,
          .read_bytes_per_s = spec.scrub_mib_per_s * kMebibyte,
          .must_hold = lock.check()};
}

/// A copied or renamed run directory keeps it.
std::string id_of(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs) {
  const auto identity = read_identity(fs, run);
  return identity ? identity->run_id : plan.run_id;
}

}  // namespace

RunCheckpoints::RunCheckpoints(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs,
                               Clock& clock, RunLog& log, const LockWatch& lock)
    : plan_(plan),
      run_(run),
      fs_(fs),
      clock_(clock),
      log_(log),
      run_id_(id_of(plan, run, fs)),
      store_(store_of_run(plan.job.job.checkpoint, run_id_)),
      thread_(fs, clock, care_options(plan, run, run_id_, store_, lock)) {
  for (const int64_t step : plan.doubted) thread_.doubt(step);
  log_.status().store = store_;
  turn();
}

/// Before the thread goes on: it may remove at once what is older.
void RunCheckpoints::keep_way_back(std::vector<std::string> events) {
  if (plan_.job.job.observability.replay_every_steps == 0) return;
  const auto line = last_line_that(fs_, run_.metrics(),
                                   [](const std::string& one) { return agreed_step(one).has_value(); });
  thread_.keep_upto(way_back(events, line ? agreed_step(*line) : std::nullopt));
}

void RunCheckpoints::begin(uint64_t epoch, int64_t step) {
  std::vector<std::string> events = lines_of(fs_, run_.events());
  events.push_back(dump_json(Json{{"kind", word_of(EventKind::start)}, {"from_step", step}}));
  keep_way_back(std::move(events));
  thread_.begin(epoch, step);
}

void RunCheckpoints::attach(uint64_t epoch) {
  keep_way_back(lines_of(fs_, run_.events()));
  thread_.begin(epoch, INT64_MAX);
}

void RunCheckpoints::turn() {
  for (const CareReport& report : thread_.take_reports()) {
    log_.event(report.kind, report.json);
    if (!report.note.empty()) log_.console().note(report.note);
  }
  const CareProgress progress = thread_.progress();
  log_.status().verified_step = progress.verified_step;
  log_.status().uploaded_step = progress.uploaded_step;
  log_.status().finite_step.reset();
  if (progress.verified_step > progress.finite_step) log_.status().finite_step = progress.finite_step;
  progress_ = progress;
}

Problem RunCheckpoints::lost_state() const {
  if (progress_.not_finite_saves <= kMostNotFiniteSaves) return Problem::none();
  const int64_t step = progress_.finite_step;
  return Problem(fmt::format(
      "the last {} checkpoints hold values that are not finite, which no step makes good again; {}",
      progress_.not_finite_saves,
      step < 0
          ? "no checkpoint is finite: begin again with a lower schedule.lr"
          : fmt::format("step {} is the last that is finite: begin from it with what may help, e.g. trainctl "
                        "launch {} --from {}@{} -s schedule.lr={:.3g}",
                        step, run_.job(), plan_.name, step, plan_.job.job.schedule.lr / 3)));
}

void RunCheckpoints::finish(double limit_s, bool in_haste, const std::function<bool()>& is_given_up) {
  limit_s = std::max(0.0, in_haste ? std::min(kHasteS, limit_s) : limit_s);
  const double begin_s = clock_.monotonic_s();
  bool said = false;
  const Problem left = thread_.finish(limit_s, [&] {
    turn();
    if (!said && clock_.monotonic_s() - begin_s > kSilentS) {
      said = true;
      log_.console().note(fmt::format("   checking{} the last checkpoints, at most {} (Ctrl-C leaves that)…",
                                      store_.empty() ? "" : " and copying", short_duration(limit_s)));
    }
    return is_given_up();
  });
  turn();
  if (left.exists()) log_.console().note(" ! " + left.text());
}

/// What a thread of its own says while it works, and whether it is to end.
struct RunCheckpoints::Meanwhile {
  void say(const std::string& line) const {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  }
  bool is_given_up() const { return ends; }

  mutable std::mutex mutex;
  mutable std::vector<std::string> lines;
  std::atomic<bool> ends = false;
};

void RunCheckpoints::find_here(const FindCheckpoint& find, Found& found, const Meanwhile& meanwhile) {
  try {
    ckpt::restore_moved(fs_, run_.checkpoints(plan_.job.job.checkpoint));
  } catch (const Error& error) {
    meanwhile.say(fmt::format(" ! {}", error.what()));
  }
  Usable usable = find_usable({fs_, clock_}, {.directory = run_.checkpoints(plan_.job.job.checkpoint),
                                              .run_id = run_id_,
                                              .store = store_,
                                              .events = lines_of(fs_, run_.events()),
                                              .at_most = find.at_most,
                                              .damaged = find.damaged,
                                              .say = [&](const std::string& line) { meanwhile.say(line); },
                                              .is_given_up = [&] { return meanwhile.is_given_up(); }});
  found.checkpoint = std::move(usable.checkpoint);
  found.skipped.insert(found.skipped.end(), usable.skipped.begin(), usable.skipped.end());
  for (auto& event : usable.events) found.events.push_back(std::move(event));
}

RunCheckpoints::Found RunCheckpoints::find(const FindCheckpoint& find, const std::function<bool()>& serve) {
  Found found;
  if (find.at_most && *find.at_most < 0 && !find.damaged) return found;
  if (!store_.empty()) pause();  // what follows may write where the care does
  Meanwhile meanwhile;
  auto searching = std::async(std::launch::async, [&] {
    find_here(find, found, meanwhile);
    const auto here = found.checkpoint ? std::optional(found.checkpoint->state().step) : std::nullopt;
    if (!store_newer_than(here, false) || store_.empty() || (find.at_most && *find.at_most < 0)) return;
    if (!fetch(find.at_most, found, meanwhile)) return;
    find_here({find.at_most, {}, {}}, found, meanwhile);
    found.from_store = found.checkpoint != nullptr;
  });
  const auto say = [&] {
    const std::lock_guard lock(meanwhile.mutex);
    for (const std::string& line : std::exchange(meanwhile.lines, {})) log_.console().note(line);
  };
  try {
    while (searching.wait_for(std::chrono::duration<double>(kTurnS)) != std::future_status::ready) {
      say();
      if (!serve()) meanwhile.ends = true;
    }
  } catch (...) {
    meanwhile.ends = true;
    searching.wait();
    throw;
  }
  say();
  for (const int64_t step : found.skipped) thread_.doubt(step);
  if (find.damaged) thread_.doubt(*find.damaged);
  if (!store_.empty()) thread_.end_pause();
  try {
    searching.get();
  } catch (const CareInterrupted&) {
    found.checkpoint.reset();
  }
  for (const auto& [kind, fields] : found.events) log_.event(kind, fields);
  return found;
}

bool RunCheckpoints::fetch(std::optional<int64_t> at_most, Found& found, const Meanwhile& meanwhile) {
  try {
    const std::optional<Fetched> fetched =
        fetch_checkpoint({fs_, clock_}, {.place = store_,
                                         .directory = run_.checkpoints(plan_.job.job.checkpoint),
                                         .run_id = run_id_,
                                         .at_most = at_most,
                                         .say = [&](const std::string& line) { meanwhile.say(line); },
                                         .is_given_up = [&] { return meanwhile.is_given_up(); }});
    if (fetched) found.events.emplace_back(EventKind::checkpoint_fetched, fetched->event_json());
    return fetched.has_value();
  } catch (const Error& error) {
    meanwhile.say(fmt::format(" ! no checkpoint can be taken from {}: {}", store_, error.what()));
    return false;
  }
}

}  // namespace trainctl
