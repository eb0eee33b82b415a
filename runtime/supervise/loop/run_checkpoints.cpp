#include "runtime/supervise/loop/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>

#include "ckpt/checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/supervise/care/run_store.h"
#include "runtime/supervise/history/suspects.h"

namespace trainctl {
namespace {

/// Longest wait at the end of a run whose job has no more time.
constexpr double kHasteS = 10;
constexpr double kTurnS = 0.1;
/// A wait shorter than this needs no line.
constexpr double kSilentS = 2;

CareOptions care_options(const SupervisePlan& plan, const RunDirectory& run, const std::string& run_id,
                         const std::string& store, const LockWatch& lock) {
  const CheckpointSpec& spec = plan.job.job.checkpoint;
  return {.run_id = run_id,
          .directory = run.checkpoints(plan.job.job),
          .marks_path = run.file("checkpoints.json"),
          .keep_last = spec.keep_last,
          .keep_every_steps = spec.keep_every_steps,
          .store = store,
          .store_every_steps = spec.store_every_steps,
          .read_bytes_per_s = spec.scrub_mib_per_s * kMebibyte,
          .must_hold = [&lock] { lock.must_hold(); }};
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
      store_(store_of_run(plan.job.job, run_id_)),
      thread_(fs, clock, care_options(plan, run, run_id_, store_, lock)) {
  log_.status().store = store_;
  turn();
}

void RunCheckpoints::turn() {
  for (const CareReport& report : thread_.take_reports()) {
    log_.event(report.kind, report.json);
    if (!report.note.empty()) log_.console().note(report.note);
  }
  const CareProgress progress = thread_.progress();
  log_.status().verified_step = progress.verified_step;
  log_.status().uploaded_step = progress.uploaded_step;
}

void RunCheckpoints::finish(bool in_haste, const std::function<bool()>& is_given_up) {
  const double given_s = plan_.job.job.checkpoint.exit_timeout_seconds;
  const double limit_s = in_haste ? std::min(kHasteS, given_s) : given_s;
  const double begin_s = clock_.monotonic_s();
  bool said = false;
  const Problem left = thread_.finish(limit_s, [&] {
    turn();
    if (!said && clock_.monotonic_s() - begin_s > kSilentS) {
      said = true;
      log_.console().note(
          fmt::format("   checking{} the last checkpoints, at most {} (press again to leave that)…",
                      store_.empty() ? "" : " and copying", short_duration(limit_s)));
    }
    return is_given_up();
  });
  turn();
  if (left.exists()) log_.console().note(" ! " + left.text());
}

void RunCheckpoints::find_here(int64_t at_most, Found& found) {
  try {
    ckpt::restore_moved(fs_, run_.checkpoints(plan_.job.job));
  } catch (const Error& error) {
    log_.console().note(fmt::format(" ! {}", error.what()));
  }
  found.checkpoint = open_latest_trusted(
      fs_, run_.checkpoints(plan_.job.job), at_most, suspect_checkpoints(lines_of(fs_, run_.events())),
      [&](const std::string& path, const std::string& reason) {
        ++found.skipped;
        log_.console().note(fmt::format(" ! {} is skipped: {}", path, reason));
      },
      [&](const Suspect& suspect) {
        log_.console().note(fmt::format(" ! {}; an older one is used", suspect.text()));
        log_.event(EventKind::checkpoint_suspect, suspect.event_json());
      });
}

RunCheckpoints::Found RunCheckpoints::find(std::optional<int64_t> at_most,
                                           const std::function<void()>& serve) {
  Found found;
  if (at_most && *at_most < 0) return found;
  find_here(at_most.value_or(-1), found);
  if (found.checkpoint || at_most || store_.empty()) return found;
  pause();
  const bool is_fetched = fetch(serve);
  thread_.end_pause();
  if (is_fetched) find_here(-1, found);
  found.from_store = is_fetched && found.checkpoint;
  return found;
}

bool RunCheckpoints::fetch(const std::function<void()>& serve) {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::atomic<bool> ends = false;
  const FetchRequest request{.place = store_,
                             .directory = run_.checkpoints(plan_.job.job),
                             .run_id = run_id_,
                             .say =
                                 [&](const std::string& line) {
                                   const std::lock_guard lock(mutex);
                                   lines.push_back(line);
                                 },
                             .go_on =
                                 [&] {
                                   if (ends) throw CareInterrupted{};
                                 }};
  auto fetching = std::async(std::launch::async, [&] { return fetch_checkpoint({fs_, clock_}, request); });
  const auto say = [&] {
    const std::lock_guard lock(mutex);
    for (const std::string& line : std::exchange(lines, {})) log_.console().note(line);
  };
  try {
    while (fetching.wait_for(std::chrono::duration<double>(kTurnS)) != std::future_status::ready) {
      say();
      serve();
    }
  } catch (...) {
    ends = true;
    fetching.wait();
    throw;
  }
  say();
  try {
    const std::optional<Fetched> fetched = fetching.get();
    if (fetched) log_.event(EventKind::checkpoint_fetched, fetched->event_json());
    return fetched.has_value();
  } catch (const Error& error) {
    log_.console().note(fmt::format(" ! no checkpoint can be taken from {}: {}", store_, error.what()));
    return false;
  }
}

}  // namespace trainctl
