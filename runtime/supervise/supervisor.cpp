#include "runtime/supervise/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "ckpt/checkpoint.h"
#include "runtime/base/json.h"
#include "runtime/base/process_memory.h"
#include "runtime/base/text.h"
#include "runtime/supervise/attempt.h"
#include "runtime/machine/bundle.h"
#include "runtime/supervise/divergence.h"
#include "runtime/machine/session.h"
#include "runtime/spec/lineage.h"

namespace trainctl {
namespace {

using nlohmann::json;

std::string dump(const json& j) { return dump_json(j); }

/// Ranks read the spec, open data and build the model before the first step, all of them on the same few cores.
double start_timeout_s(int ranks) { return 60 + 1.0 * ranks; }

class Supervisor {
 public:
  Supervisor(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock, Console& console)
      : plan_(plan),
        run_(run),
        fs_(fs),
        clock_(clock),
        console_(console),
        log_(fs, clock, run, console),
        resume_from_(plan.resume_from),
        resume_step_(plan.resume_step) {
    const JobSpec& job = plan_.job.job;
    last_step_ =
        plan_.max_steps > 0 ? std::min(plan_.max_steps, job.schedule.total_steps) : job.schedule.total_steps;
    RunStatus& status = log_.status();
    status.run_id = plan_.run_id;
    status.total_steps = job.schedule.total_steps;
    status.lineage_json = plan_.lineage_json;
    status.started_unix_s = clock.unix_s();
    status.heartbeat_s = job.fault_tolerance.heartbeat_seconds;
    status.step_timeout_s = job.fault_tolerance.step_timeout_seconds;
    console_.set_total_steps(last_step_);
    log_.set_last_step(last_step_);
  }

  RunResult run() {
    StopSignals signals;
    SessionFolders::sweep();
    end_leftovers();
    if (!plan_.change_json.empty()) log_.event("change", plan_.change_json);
    try {
      while (true) {
        Verdict verdict = attempt(signals);
        if (verdict.outcome != Verdict::failed) return conclude(verdict);
        const std::string folder = record_failure(verdict);
        if (!may_go_on(verdict, signals)) return conclude_failure(verdict, folder);
      }
    } catch (const Error& error) {
      give_up(exit_status(error.code()), error.what());
      throw;
    } catch (const std::bad_alloc&) {
      give_up(exit_status(ErrorCode::kPlan), out_of_memory_text());
      throw;
    } catch (const std::exception& error) {
      give_up(exit_status(ErrorCode::kInternal), error.what());
      throw;
    }
  }

 private:
  /// Not a rank but this process could not go on: the launcher does not start, the run directory cannot be
  /// written. What broke it may break the record of it, too; that must not hide the first error.
  void give_up(int exit_code, const std::string& reason) {
    try {
      end_leftovers();
      end("failed", exit_code, reason, "trainctl resume " + plan_.name);
    } catch (const std::exception& second) {
      fmt::print(stderr, "trainctl: nor could the end of the run be recorded: {}\n", second.what());
    }
  }

  /// Ranks of a supervisor that was killed end by themselves; one that is stopped (SIGSTOP) cannot. We hold the
  /// lock, so any process that carries this run's mark is a leftover.
  void end_leftovers() {
    for (int tries = 0; tries < 100 && signal_marked(kRunVariable, run_.path, SIGKILL) > 0; ++tries)
      clock_.sleep_s(0.02);
  }

  /// Whether the attempt begins from the checkpoint of another run.
  bool at_start() const { return plan_.start && resume_from_ == plan_.start->checkpoint; }

  Verdict attempt(StopSignals& signals) {
    const JobSpec& job = plan_.job.job;
    RunStatus& status = log_.status();
    status.epoch = last_epoch(fs_, run_) + 1;
    status.step = resume_step_;
    status.step_unix_s = 0;
    status.saved_step = resume_from_.empty() || at_start() ? -1 : resume_step_;
    const int64_t moved =
        supersede_metrics(fs_, run_.metrics(), resume_step_,
                          run_.file(fmt::format("metrics.superseded-e{}.jsonl", status.epoch).c_str()));
    log_.reopen_metrics();
    const std::string checkpoints = run_.checkpoints(job);
    const ckpt::Superseded aside = ckpt::supersede(fs_, checkpoints, resume_step_, status.epoch);
    if (!aside.steps.empty())
      console_.note(fmt::format("   {} beyond step {} ({}) moved to {}: removed once {} new ones are saved; to keep "
                                "them, move them out of {}",
                                count_of(int64_t(aside.steps.size()), "checkpoint"), resume_step_,
                                size_text(aside.bytes), aside.path, std::max(job.checkpoint.keep_last, 2),
                                checkpoints));
    log_.event("start", dump({{"epoch", status.epoch},
                              {"ranks", job.mesh().world_size()},
                              {"from_step", resume_step_},
                              {"checkpoint", resume_from_},
                              {"numerics", plan_.numerics},
                              {"superseded_steps", moved}}));
    const SessionFolders folders;
    AttemptOptions options;
    options.line = launch_line({.job = &job,
                                .mpirun = plan_.mpirun,
                                .program = plan_.program,
                                .run_directory = run_.path,
                                .session_folder = folders.session(),
                                .shared_memory_folder = folders.shared_memory(),
                                .bundle = own_bundle(),
                                .homeless = !std::getenv("HOME"),
                                .root = ::geteuid() == 0,
                                .cross_memory_attach = plan_.cross_memory_attach});
    options.limits.ranks = job.mesh().world_size();
    options.limits.target_step = last_step_;
    options.limits.heartbeat_s = job.fault_tolerance.heartbeat_seconds;
    options.limits.step_timeout_s = job.fault_tolerance.step_timeout_seconds;
    options.limits.setup_timeout_s = job.fault_tolerance.setup_timeout_seconds;
    options.limits.data_timeout_s = job.fault_tolerance.data_timeout_seconds;
    options.limits.load_timeout_s = job.fault_tolerance.load_timeout_seconds;
    options.limits.evaluation_timeout_s = job.fault_tolerance.evaluation_timeout_seconds;
    options.limits.save_timeout_s = job.fault_tolerance.save_timeout_seconds;
    options.limits.start_timeout_s = start_timeout_s(options.limits.ranks);
    options.saves = {.ranks = options.limits.ranks,
                     .directory = checkpoints,
                     .keep_last = job.checkpoint.keep_last,
                     .keep_every_steps = job.checkpoint.keep_every_steps};
    options.file = {.epoch = status.epoch,
                    .resume_from = resume_from_,
                    .board = folders.shared_memory() + "/activity",
                    .max_steps = plan_.max_steps,
                    .new_data = at_start() && plan_.start->new_data,
                    .lineage_json = lineage_at(plan_.lineage_json, resume_step_),
                    .threads_per_rank = job.parallelism.threads_per_rank,
                    .matmul_flops_per_s = plan_.matmul_flops_per_s};
    return run_attempt(std::move(options), run_, fs_, clock_, log_, signals);
  }

  std::string record_failure(const Verdict& v) {
    const json fields = {{"epoch", log_.status().epoch},
                         {"step", log_.status().step},
                         {"code", exit_status(v.code)},
                         {"code_name", name_of(v.code)},
                         {"rank", v.rank},
                         {"cause", v.cause},
                         {"effect", v.effect}};
    log_.event("failure", dump(fields));
    try {
      return collect_failure(fs_, run_, dump(fields), v.rank, plan_.job.job.mesh().world_size());
    } catch (const Error& error) {
      console_.note(fmt::format(" ! what is known of the failure could not be kept: {}", error.what()));
      return run_.file("failures");
    }
  }

  /// Decides on another attempt and where it starts. Where only a missing checkpoint forbids it, `v` says so, too.
  bool may_go_on(Verdict& v, StopSignals& signals) {
    if (signals.read() != StopLevel::none) return false;
    // A checkpoint that opened but cannot be loaded: the next older one, which costs no restart (each time a
    // lower step, so this ends).
    if (v.code == ErrorCode::kCheckpoint && !resume_from_.empty() && !plan_.resume_fixed) {
      if (go_back(resume_step_ - 1,
                  fmt::format("checkpoint step {} cannot be loaded ({})", resume_step_, v.cause)))
        return true;
      v.cause += "; there is no older usable checkpoint";
      return false;
    }
    RunStatus& status = log_.status();
    if (!worth_restarting(v.code) || status.restarts >= plan_.job.job.fault_tolerance.max_restarts)
      return false;
    ++status.restarts;
    if (go_back(std::nullopt, fmt::format("{}; restart {} of {}", v.cause, status.restarts,
                                          plan_.job.job.fault_tolerance.max_restarts)))
      return true;
    --status.restarts;
    v.code = ErrorCode::kCheckpoint;
    v.cause += "; the run was saved, but none of its checkpoints is usable";
    return false;
  }

  /// Chooses the newest usable checkpoint of at most step `at_most` (nothing: any, or step 0 if nothing was ever
  /// saved). False: there is none. A run that was saved must not begin again from step 0 unasked: that would
  /// move every checkpoint aside.
  bool go_back(std::optional<int64_t> at_most, const std::string& why) {
    const int64_t lost_from = log_.status().step;
    std::unique_ptr<ckpt::Checkpoint> checkpoint;
    int skipped = 0;
    if (!at_most || *at_most >= 0)
      checkpoint = ckpt::open_latest(fs_, run_.checkpoints(plan_.job.job), at_most.value_or(-1),
                                     [&](const std::string& path, const std::string& reason) {
                                       ++skipped;
                                       console_.note(fmt::format(" ! {} is skipped: {}", path, reason));
                                     });
    if (!checkpoint && (at_most || skipped > 0)) return false;
    resume_from_ = checkpoint ? checkpoint->path() : plan_.start ? plan_.start->checkpoint : "";
    resume_step_ = checkpoint ? checkpoint->state().step : plan_.start ? plan_.start->step : 0;
    RunStatus& status = log_.status();
    status.state = "restarting";
    status.reason = why;
    log_.event("restart", dump({{"restart", status.restarts},
                                {"from_step", resume_step_},
                                {"lost_steps", std::max<int64_t>(0, lost_from - resume_step_)},
                                {"reason", why}}));
    console_.note(fmt::format(" ! {}", why));
    console_.note(fmt::format("   going on from {}", checkpoint
                                                         ? fmt::format("checkpoint step {}", resume_step_)
                                                     : plan_.start ? plan_.start->checkpoint
                                                                   : "step 0: there is no checkpoint"));
    return true;
  }

  RunResult end(const char* state, int exit_code, std::string reason, std::string advice) {
    RunStatus& status = log_.status();
    if (had_identity_ && !fs_.exists(run_.file("run.json"))) {
      reason = fmt::format("{} was removed while the run was going: its logs and metrics are lost, checkpoints are in {}",
                           run_.path, run_.checkpoints(plan_.job.job));
      console_.say("error: " + reason);
      advice = "";
      if (exit_code == 0) exit_code = exit_status(ErrorCode::kIo);
    }
    status.state = state;
    status.exit_code = exit_code;
    status.reason = reason;
    status.advice = advice;
    log_.event("end",
               dump({{"state", state}, {"step", status.step}, {"exit_code", exit_code}, {"reason", reason}}));
    log_.finish();
    return {exit_code, status};
  }

  RunResult conclude(const Verdict& v) {
    const RunStatus& s = log_.status();
    const std::string resume = "trainctl resume " + plan_.name;
    const std::string logs = fmt::format("logs {}/logs · metrics {}", run_.path, run_.metrics());
    const bool saved = s.saved_step == s.step;
    if (const std::string summary = log_.summary(); !summary.empty()) console_.note(summary);
    if (v.outcome == Verdict::aborted) {
      console_.say(fmt::format("aborted at step {}; {}. {}", s.step,
                               s.saved_step >= 0 ? fmt::format("the last checkpoint is step {}", s.saved_step)
                                                 : "no checkpoint was saved",
                               logs));
      console_.say("next: " + resume);
      return end("aborted", 130, "stopped at once on request", resume);
    }
    if (!saved && log_.save_failed_step() == s.step && s.step > 0) {
      const std::string reason =
          fmt::format("the last save, of step {}, failed: {}", s.step, log_.save_failure());
      console_.say(fmt::format("error: {}; {}", reason,
                               s.saved_step >= 0 ? fmt::format("the last checkpoint is step {}", s.saved_step)
                                                 : "there is no checkpoint"));
      console_.say("next: make room or repair the disk, then " + resume);
      return end("failed", exit_status(ErrorCode::kCheckpoint), reason, resume);
    }
    if (v.outcome == Verdict::stopped) {
      console_.say(fmt::format("stopped on request, saved step {}. {}", s.saved_step, logs));
      console_.say("next: " + resume);
      return end("stopped", exit_status(ErrorCode::kStopped), "stopped on request", resume);
    }
    const bool whole = s.step >= plan_.job.job.schedule.total_steps;
    const std::string next =
        whole
            ? (saved ? "trainctl inspect-ckpt " + ckpt::step_directory(run_.checkpoints(plan_.job.job), s.step)
                     : "")
            : resume;
    console_.say(
        fmt::format("{} step {}{}. {}", whole ? "finished" : "reached", s.step, saved ? ", saved" : "", logs));
    if (!next.empty()) console_.say("next: " + next);
    return end(whole ? "finished" : "paused", 0, "", next);
  }

  /// The failure block: last, once.
  RunResult conclude_failure(const Verdict& v, const std::string& folder) {
    const RunStatus& s = log_.status();
    const std::string after =
        s.restarts ? fmt::format(" after {} restart{}", s.restarts, s.restarts == 1 ? "" : "s") : "";
    const std::string resume = "trainctl resume " + plan_.name;
    const bool at_start = v.before_first_step;
    console_.say(fmt::format("━━ run {} failed {}{} ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━", plan_.run_id,
                             at_start ? "before its first step" : fmt::format("after step {}", s.step), after));
    console_.say("root cause  " + v.cause);
    if (!v.effect.empty()) console_.say("effect      " + v.effect);
    // A step that was asked for: without --step a resume passes its checkpoint over by itself.
    const bool damaged = v.code == ErrorCode::kCheckpoint && plan_.resume_fixed && at_start;
    const int64_t base = std::max<int64_t>(s.saved_step, plan_.start ? plan_.start->step : 0);
    console_.say(fmt::format("lost        {} step{}; {}", std::max<int64_t>(0, s.step - base),
                             s.step - base == 1 ? "" : "s",
                             damaged ? fmt::format("the checkpoint of step {} cannot be loaded", resume_step_)
                             : s.saved_step >= 0 ? fmt::format("the last checkpoint is step {}", s.saved_step)
                                                 : "there is no checkpoint yet"));
    const bool diverged = v.code == ErrorCode::kDiverged;
    const std::string advice = diverged ? divergence_advice(fs_, plan_.job.job, run_) : resume;
    std::string before;
    if (at_start && (v.code == ErrorCode::kLauncher || v.code == ErrorCode::kWorker))
      before = fmt::format("repair the cause above, or each start fails the same way (launcher.mpirun is {}, its words are in "
                           "{}/logs/mpirun.log), then ",
                           plan_.mpirun, run_.path);
    else if (!diverged && !damaged && !worth_restarting(v.code))
      before = "repair the cause above, then ";
    console_.say("what to do  " + before + advice + (damaged ? " (takes the newest checkpoint that can be loaded)" : ""));
    console_.say(fmt::format("details     {}", folder));
    return end("failed", exit_status(v.code), v.cause, advice);
  }

  const SupervisePlan& plan_;
  const RunDirectory run_;
  FileSystem& fs_;
  Clock& clock_;
  Console& console_;
  RunLog log_;
  std::string resume_from_;
  int64_t resume_step_ = 0, last_step_ = 0;
  const bool had_identity_ = fs_.exists(run_.file("run.json"));
};

}  // namespace

uint64_t last_epoch(FileSystem& fs, const RunDirectory& run) {
  return fs.exists(run.attempt()) ? AttemptFile::from_json(fs.read_text(run.attempt())).epoch : 0;
}

RunResult supervise(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
                    Console& console) {
  return Supervisor(plan, run, fs, clock, console).run();
}

}  // namespace trainctl
