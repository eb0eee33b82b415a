// Ending is how a run ended, as a value: its state, exit status and advice, and the last lines on the
// console. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/run/record/run_directory.h"
#include "runtime/run/record/run_status.h"
#include "runtime/supervise/decide/supervision.h"

namespace trainctl {

/// What is known of a run at its end.
struct EndFacts {
  RunDirectory run;
  std::string name, run_id;    ///< in advised commands; for people
  std::string checkpoints;     ///< their folder
  std::string mpirun;          ///< its path
  int64_t total_steps = 0;     ///< of the job
  int64_t parent_step = 0;     ///< where a branch began; 0: the run began at its start
  bool is_step_given = false;  ///< a person named the step to begin from
  RunStatus status;
  int64_t save_failed_step = -1;  ///< of the last save that failed; -1: none
  std::string save_failure;       ///< why
  std::string summary;            ///< a line; "": no step was done
};

struct Ending {
  struct Line {
    std::string text;
    bool is_note = false;  ///< not printed with --quiet
  };
  RunState state = RunState::failed;
  int exit_code = 0;
  std::string reason, advice;  ///< advice: the next command
  std::vector<Line> lines;
};

/// After an attempt that did not fail. `stopped`: why it was stopped ("on request"), if it was.
Ending ending_of(const EndFacts& facts, const Verdict& verdict, const char* stopped);
/// After a failure.
///   folder          of its records
///   resume_step     from which the last attempt began
///   after_diverged  what to do where the loss diverged
Ending ending_of_failure(const EndFacts& facts, const Verdict& verdict, const std::string& folder,
                         int64_t resume_step, const std::string& after_diverged);
/// While no attempt ran: a stop between attempts, or too few nodes.
Ending ending_idle(const EndFacts& facts, int exit_code, const std::string& why);
/// The same of a run whose folder was removed meanwhile.
Ending without_folder(Ending ending, const EndFacts& facts);

}  // namespace trainctl
