#include "runtime/supervise/loop/run_end.h"

#include <fmt/format.h>

#include "ckpt/checkpoint.h"
#include "runtime/base/ensure.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/supervise/history/divergence.h"

namespace trainctl {

RunEnd::RunEnd(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Console& console,
               RunLog& log)
    : plan_(plan),
      run_(run),
      fs_(fs),
      console_(console),
      log_(log),
      had_identity_(fs.exists(run.file("run.json"))) {}

RunResult RunEnd::end(RunState state, int exit_code, std::string reason, std::string advice) {
  RunStatus& status = log_.status();
  if (had_identity_ && !fs_.exists(run_.file("run.json"))) {
    reason = fmt::format(
        "{} was removed while the run was going: its logs and metrics are lost, checkpoints are in {}",
        run_.path, run_.checkpoints(plan_.job.job.checkpoint));
    console_.say("error: " + reason);
    advice = "";
    if (exit_code == 0) exit_code = exit_status(ErrorCode::kIo);
  }
  status.state = state;
  status.exit_code = exit_code;
  status.reason = reason;
  status.advice = advice;
  log_.event(EndEvent{.state = state, .step = status.step, .exit_code = exit_code, .reason = reason});
  log_.finish();
  return {exit_code, status};
}

RunResult RunEnd::conclude(const Verdict& v, const char* stopped) {
  ENSURE(v.outcome != Verdict::failed, "{}", v.cause);
  ENSURE(v.outcome != Verdict::stopped || stopped);
  const RunStatus& s = log_.status();
  const std::string resume = "trainctl resume " + plan_.name;
  const std::string logs = fmt::format("logs {}/logs · metrics {}", run_.path, run_.metrics());
  const bool saved = s.saved_step == s.step;
  if (const std::string summary = log_.summary(plan_.val_bytes_per_token); !summary.empty())
    console_.note(summary);
  if (v.outcome == Verdict::aborted) {
    console_.say(fmt::format("aborted at step {}; {}. {}", s.step,
                             s.saved_step >= 0 ? fmt::format("the last checkpoint is step {}", s.saved_step)
                                               : "no checkpoint was saved",
                             logs));
    console_.say("next: " + resume);
    return end(RunState::aborted, 130, "stopped at once on request", resume);
  }
  const bool failed = log_.save_failed_step() == s.step;
  if (!saved && (failed || !v.gave_up.empty()) && s.step > 0) {
    const std::string reason =
        failed ? fmt::format("the last save, of step {}, failed: {}", s.step, log_.save_failure())
               : fmt::format("step {} is not saved: {}", s.step, v.gave_up);
    console_.say(fmt::format("error: {}; {}", reason,
                             s.saved_step >= 0 ? fmt::format("the last checkpoint is step {}", s.saved_step)
                                               : "there is no checkpoint"));
    console_.say("next: make room or repair the disk, or give it more time, then " + resume);
    return end(RunState::failed, exit_status(ErrorCode::kCheckpoint), reason, resume);
  }
  if (v.outcome == Verdict::stopped) {
    console_.say(fmt::format("stopped {}, saved step {}. {}", stopped, s.saved_step, logs));
    console_.say("next: " + resume);
    return end(RunState::stopped, exit_status(ErrorCode::kStopped), fmt::format("stopped {}", stopped),
               resume);
  }
  const bool whole = s.step >= plan_.job.job.schedule.total_steps;
  const std::string checkpoints = run_.checkpoints(plan_.job.job.checkpoint);
  const std::string inspect =
      saved ? "trainctl inspect-ckpt " + shell_quoted(ckpt::step_directory(checkpoints, s.step)) : "";
  const std::string next = whole ? inspect : resume;
  console_.say(
      fmt::format("{} step {}{}. {}", whole ? "finished" : "reached", s.step, saved ? ", saved" : "", logs));
  if (!next.empty()) console_.say("next: " + next);
  console_.note("page: trainctl report " + plan_.name);
  return end(whole ? RunState::finished : RunState::paused, 0, "", next);
}

RunResult RunEnd::conclude_failure(const Verdict& v, const std::string& folder, int64_t resume_step) {
  ENSURE(v.outcome == Verdict::failed, "outcome {}", int(v.outcome));
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
                           damaged ? fmt::format("the checkpoint of step {} cannot be loaded", resume_step)
                           : s.saved_step >= 0 ? fmt::format("the last checkpoint is step {}", s.saved_step)
                                               : "there is no checkpoint yet"));
  const bool diverged = v.code == ErrorCode::kDiverged;
  const std::string advice = diverged ? divergence_advice(fs_, plan_.job.job, run_) : resume;
  std::string before;
  if (at_start && (v.code == ErrorCode::kLauncher || v.code == ErrorCode::kWorker))
    before = fmt::format(
        "repair the cause above, or each start fails the same way (launcher.mpirun is {}, its words are in "
        "{}/logs/mpirun.log), then ",
        plan_.mpirun, run_.path);
  else if (!diverged && !damaged && !worth_restarting(v.code, !v.before_first_step))
    before = "repair the cause above, then ";
  console_.say("what to do  " + before + advice +
               (damaged ? " (takes the newest checkpoint that can be loaded)" : ""));
  console_.say(fmt::format("details     {}", folder));
  return end(RunState::failed, exit_status(v.code), v.cause, advice);
}

RunResult RunEnd::conclude_idle(int exit_code, const std::string& why) {
  const RunStatus& s = log_.status();
  const std::string resume = "trainctl resume " + plan_.name;
  if (const std::string summary = log_.summary(plan_.val_bytes_per_token); !summary.empty())
    console_.note(summary);
  console_.say(fmt::format("stopped at step {}: {}; {}", s.step, why,
                           s.saved_step >= 0 ? fmt::format("the last checkpoint is step {}", s.saved_step)
                                             : "there is no checkpoint"));
  console_.say("next: " + resume);
  return end(exit_code == 130 ? RunState::aborted : RunState::stopped, exit_code, why, resume);
}

std::string RunEnd::record_failure(const Verdict& v) {
  ENSURE(v.outcome == Verdict::failed, "outcome {}", int(v.outcome));
  const Json fields = {{"epoch", log_.status().epoch},
                       {"step", log_.status().step},
                       {"code", exit_status(v.code)},
                       {"code_name", name_of(v.code)},
                       {"rank", v.rank},
                       {"cause", v.cause},
                       {"effect", v.effect}};
  log_.event(EventKind::failure, dump_json(fields));
  try {
    return collect_failure(fs_, run_, dump_json(fields), v.rank, plan_.job.job.mesh().world_size());
  } catch (const Error& error) {
    console_.note(fmt::format(" ! cannot write the failure report: {}", error.what()));
    return run_.file("failures");
  }
}

}  // namespace trainctl
