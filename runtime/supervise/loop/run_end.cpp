#include "runtime/supervise/loop/run_end.h"

#include <fmt/format.h>

#include "runtime/base/ensure.h"
#include "runtime/base/json.h"
#include "runtime/run/record/flight_verdict.h"
#include "runtime/supervise/history/divergence.h"

namespace trainctl {

EndFacts RunEnd::facts() const {
  return {.run = run_.directory,
          .name = run_.plan.name,
          .run_id = run_.plan.run_id,
          .checkpoints = run_.directory.checkpoints(run_.plan.job.job.checkpoint),
          .mpirun = run_.plan.mpirun,
          .total_steps = run_.plan.job.job.schedule.total_steps,
          .parent_step = run_.plan.start ? run_.plan.start->step : 0,
          .is_step_given = run_.plan.resume_fixed,
          .status = run_.log.status(),
          .save_failed_step = run_.log.save_failed_step(),
          .save_failure = run_.log.save_failure(),
          .summary = run_.log.summary(run_.plan.val_bytes_per_token)};
}

RunResult RunEnd::end(Ending ending) {
  if (had_identity_ && !run_.fs.exists(run_.directory.file("run.json")))
    ending = without_folder(std::move(ending), facts());
  for (const Ending::Line& line : ending.lines)
    line.is_note ? run_.log.console().note(line.text) : run_.log.console().say(line.text);
  RunStatus& status = run_.log.status();
  status.state = ending.state;
  status.exit_code = ending.exit_code;
  status.reason = ending.reason;
  status.advice = ending.advice;
  run_.log.event(EndEvent{.state = ending.state,
                          .step = status.step,
                          .exit_code = ending.exit_code,
                          .reason = ending.reason,
                          .waited_s = run_.log.take_waited_s()});
  run_.log.finish();
  return {ending.exit_code, status};
}

RunResult RunEnd::conclude(const Verdict& v, const char* stopped) {
  return end(ending_of(facts(), v, stopped));
}

RunResult RunEnd::conclude_failure(const Verdict& v, const std::string& folder, int64_t resume_step) {
  const bool diverged = v.code == ErrorCode::kDiverged;
  return end(
      ending_of_failure(facts(), v, folder, resume_step,
                        diverged ? divergence_advice(run_.fs, run_.plan.job.job, run_.directory) : ""));
}

RunResult RunEnd::conclude_idle(int exit_code, const std::string& why) {
  return end(ending_idle(facts(), exit_code, why));
}

std::string RunEnd::record_failure(const Verdict& v) {
  ENSURE(v.outcome == Verdict::failed, "outcome {}", int(v.outcome));
  const Json fields = {{"epoch", run_.log.status().epoch},
                       {"step", run_.log.status().step},
                       {"code", exit_status(v.code)},
                       {"code_name", name_of(v.code)},
                       {"rank", v.rank},
                       {"cause", v.cause},
                       {"effect", v.effect}};
  run_.log.event(EventKind::failure, dump_json(fields));
  try {
    const ParallelSpec& parallelism = run_.plan.job.job.parallelism;
    const int ranks = parallelism.mesh().world_size();
    const std::string folder = collect_failure(run_.fs, run_.directory, dump_json(fields), v.rank, ranks);
    const auto merged = merge_failure(run_.fs, folder, run_.log.status().epoch, parallelism.pipeline);
    if (merged && !merged->missing.empty()) run_.log.console().note("   rings: " + merged->summary());
    return folder;
  } catch (const Error& error) {
    run_.log.console().note(fmt::format(" ! cannot write the failure report: {}", error.what()));
    return run_.directory.file("failures");
  }
}

}  // namespace trainctl
