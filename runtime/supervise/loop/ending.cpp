#include "runtime/supervise/loop/ending.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/checkpoint.h"
#include "runtime/base/ensure.h"
#include "runtime/base/text.h"
#include "runtime/supervise/decide/recovery.h"

namespace trainctl {
namespace {

std::string resume_of(const EndFacts& facts) { return "trainctl resume " + facts.name; }

/// "the last checkpoint is step 4"
std::string last_checkpoint(const EndFacts& facts, const char* none) {
  const int64_t step = facts.status.saved_step;
  return step >= 0 ? fmt::format("the last checkpoint is step {}", step) : none;
}

void note_summary(const EndFacts& facts, Ending& ending) {
  if (!facts.summary.empty()) ending.lines.push_back({facts.summary, true});
}

void say(Ending& ending, std::string text) { ending.lines.push_back({std::move(text)}); }

/// What to do before the run is resumed, with ", then " behind it.
std::string repair_of(const EndFacts& facts, const Verdict& v) {
  if (v.before_first_step && (v.code == ErrorCode::kLauncher || v.code == ErrorCode::kWorker))
    return fmt::format(
        "repair the cause above, or each start fails the same way (launcher.mpirun is {}, its words are in "
        "{}/logs/mpirun.log), then ",
        facts.mpirun, facts.run.path);
  return worth_restarting(v.code, !v.before_first_step) ? "" : "repair the cause above, then ";
}

}  // namespace

Ending ending_of(const EndFacts& facts, const Verdict& v, const char* stopped) {
  ENSURE(v.outcome != Verdict::failed, "{}", v.cause);
  ENSURE(v.outcome != Verdict::stopped || stopped);
  const RunStatus& s = facts.status;
  const std::string resume = resume_of(facts);
  const std::string logs = fmt::format("logs {}/logs · metrics {}", facts.run.path, facts.run.metrics());
  const bool saved = s.saved_step == s.step;
  Ending ending{.advice = resume};
  note_summary(facts, ending);
  if (v.outcome == Verdict::aborted) {
    ending.state = RunState::aborted, ending.exit_code = kStoppedAtOnce,
    ending.reason = "stopped at once on request";
    say(ending, fmt::format("aborted at step {}; {}. {}", s.step,
                            last_checkpoint(facts, "no checkpoint was saved"), logs));
    say(ending, "next: " + resume);
    return ending;
  }
  const bool failed = facts.save_failed_step == s.step;
  if (!saved && (failed || !v.gave_up.empty()) && s.step > 0) {
    ending.state = RunState::failed, ending.exit_code = exit_status(ErrorCode::kCheckpoint);
    ending.reason = failed ? fmt::format("the last save, of step {}, failed: {}", s.step, facts.save_failure)
                           : fmt::format("step {} is not saved: {}", s.step, v.gave_up);
    say(ending,
        fmt::format("error: {}; {}", ending.reason, last_checkpoint(facts, "there is no checkpoint")));
    say(ending, "next: make room or repair the disk, or give it more time, then " + resume);
    return ending;
  }
  if (v.outcome == Verdict::stopped) {
    ending.state = RunState::stopped, ending.exit_code = exit_status(ErrorCode::kStopped);
    ending.reason = fmt::format("stopped {}", stopped);
    say(ending, fmt::format("stopped {}, saved step {}. {}", stopped, s.saved_step, logs));
    say(ending, "next: " + resume);
    return ending;
  }
  const bool whole = s.step >= facts.total_steps;
  ending.state = whole ? RunState::finished : RunState::paused;
  if (whole)
    ending.advice =
        saved ? "trainctl inspect-ckpt " + shell_quoted(ckpt::step_directory(facts.checkpoints, s.step)) : "";
  say(ending,
      fmt::format("{} step {}{}. {}", whole ? "finished" : "reached", s.step, saved ? ", saved" : "", logs));
  if (!ending.advice.empty()) say(ending, "next: " + ending.advice);
  ending.lines.push_back({"page: trainctl report " + facts.name, true});
  return ending;
}

Ending ending_of_failure(const EndFacts& facts, const Verdict& v, const std::string& folder,
                         int64_t resume_step, const std::string& after_diverged) {
  ENSURE(v.outcome == Verdict::failed, "outcome {}", int(v.outcome));
  const RunStatus& s = facts.status;
  const bool at_start = v.before_first_step, diverged = v.code == ErrorCode::kDiverged;
  // A step that was asked for: without --step a resume passes its checkpoint over by itself.
  const bool damaged = v.code == ErrorCode::kCheckpoint && facts.is_step_given && at_start;
  Ending ending{.state = RunState::failed,
                .exit_code = exit_status(v.code),
                .reason = v.cause,
                .advice = diverged ? after_diverged : resume_of(facts)};
  say(ending, fmt::format("━━ run {} failed {}{} ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━", facts.run_id,
                          at_start ? "before its first step" : fmt::format("after step {}", s.step),
                          s.restarts ? fmt::format(" after {}", count_of(s.restarts, "restart")) : ""));
  say(ending, "root cause  " + v.cause);
  if (!v.effect.empty()) say(ending, "effect      " + v.effect);
  const int64_t lost = s.step - std::max(s.saved_step, facts.parent_step);
  say(ending, fmt::format("lost        {}; {}", count_of(std::max<int64_t>(0, lost), "step"),
                          damaged ? fmt::format("the checkpoint of step {} cannot be loaded", resume_step)
                                  : last_checkpoint(facts, "there is no checkpoint yet")));
  say(ending, "what to do  " + (diverged || damaged ? "" : repair_of(facts, v)) + ending.advice +
                  (damaged ? " (takes the newest checkpoint that can be loaded)" : ""));
  say(ending, fmt::format("details     {}", folder));
  return ending;
}

Ending ending_idle(const EndFacts& facts, int exit_code, const std::string& why) {
  Ending ending{.state = exit_code == kStoppedAtOnce ? RunState::aborted : RunState::stopped,
                .exit_code = exit_code,
                .reason = why,
                .advice = resume_of(facts)};
  note_summary(facts, ending);
  say(ending, fmt::format("stopped at step {}: {}; {}", facts.status.step, why,
                          last_checkpoint(facts, "there is no checkpoint")));
  say(ending, "next: " + ending.advice);
  return ending;
}

Ending without_folder(Ending ending, const EndFacts& facts) {
  ending.reason = fmt::format(
      "{} was removed while the run was going: its logs and metrics are lost, checkpoints are in {}",
      facts.run.path, facts.checkpoints);
  say(ending, "error: " + ending.reason);
  ending.advice = "";
  if (ending.exit_code == 0) ending.exit_code = exit_status(ErrorCode::kIo);
  return ending;
}

}  // namespace trainctl
