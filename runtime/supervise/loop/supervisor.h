// The supervisor: runs attempts until the run is finished, stopped, or not worth another attempt, and says
// how it ended.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "runtime/run/record/run_directory.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/nodes/run_nodes.h"
#include "runtime/supervise/loop/slurm_job.h"

namespace trainctl {

struct SupervisePlan {
  ParsedJob job;
  std::string run_id;                 ///< as shown: the name of its folder
  std::string name;                   ///< for advised commands, see command_name
  std::string program;                ///< this binary; ranks are `program rank RUN`
  std::string mpirun;                 ///< full path
  RunNodes nodes;                     ///< where it may run
  SlurmTies slurm;                    ///< of the job around it, if there is one
  std::optional<AttemptFile> attach;  ///< an attempt whose supervisor died and whose ranks may be alive
  bool cross_memory_attach = true;
  int64_t max_steps = 0;
  double matmul_flops_per_s = 0;
  std::string numerics;     ///< of the devices, see run_numerics
  std::string change_json;  ///< an event: what changes the numbers from here on; "": nothing
  /// Of a run that began from another run's checkpoint: it begins there again while it has none of its own.
  struct Start {
    std::string checkpoint;
    int64_t step = 0;
    bool new_data = false;
  };
  std::optional<Start> start;
  std::string lineage_json = "[]";  ///< see runtime/spec/lineage.h
  std::string resume_from;          ///< step directory, "" for a fresh start
  int64_t resume_step = 0;
  bool resume_fixed = false;  ///< the user named the step: no other will do
  std::string take_over;  ///< why it takes the place of one that died, one sentence; "": a person started it
  const RunLock* lock = nullptr;  ///< of the run; outlives the supervisor. Null in tests: it cannot be lost
};

/// What Recovery needs to know of it.
Recovery::Options recovery_options(const SupervisePlan& plan);

struct RunResult {
  int exit_code = 0;
  RunStatus status;
  LastActs acts;  ///< to be done when the run's lock is free
};

/// Runs it to its end. The lock of the run must be held. The console gets the outcome as its last lines;
/// nothing is left running. Throws RunTaken where another supervisor has taken the run meanwhile: that one
/// has the agents and the records then. Throws another Error only where nothing was started.
RunResult supervise(const SupervisePlan& plan, const RunDirectory& run, FileSystem& fs, Clock& clock,
                    Console& console);

/// The newest epoch that the run has used, 0 for none.
uint64_t last_epoch(FileSystem& fs, const RunDirectory& run);

}  // namespace trainctl
