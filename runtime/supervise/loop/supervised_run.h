// SupervisedRun is what the parts of a supervisor share of their run: its plan and its folder, the system,
// the lock by which the run belongs to this process, and the records. One thread; LockWatch::must_hold from
// any.
#pragma once
#include <algorithm>

#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/loop/lock_watch.h"
#include "runtime/supervise/loop/supervise_plan.h"

namespace trainctl {

struct SupervisedRun {
  /// Opens the records and fills in what their status knows from the plan. All but `run` must outlive it.
  SupervisedRun(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
                Console& console)
      : plan(plan),
        directory(run),
        fs(fs),
        clock(clock),
        last_step(plan.max_steps > 0 ? std::min(plan.max_steps, plan.job.job.schedule.total_steps)
                                     : plan.job.job.schedule.total_steps),
        log(fs, clock, run, console),
        lock(plan.lock, clock, log.files()) {
    RunStatus& status = log.status();
    status.run_id = plan.run_id;
    status.total_steps = plan.job.job.schedule.total_steps;
    status.lineage_json = plan.lineage_json;
    status.started_unix_s = clock.unix_s();
    const FaultSpec& limits = plan.job.job.fault_tolerance;
    status.heartbeat_s = limits.heartbeat_seconds;
    status.step_timeout_s = limits.step_timeout_seconds;
    console.set_total_steps(last_step);
    log.set_last_step(last_step);
  }

  const SupervisePlan& plan;
  const RunDirectory directory;
  FileSystem& fs;
  Clock& clock;
  const int64_t last_step;  ///< the run ends after it
  RunLog log;
  LockWatch lock;
};

}  // namespace trainctl
