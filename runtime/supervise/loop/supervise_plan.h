// SupervisePlan is what `launch` and `resume` give to the supervisor: the job, the nodes that it may use, and the
// state to begin with.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/run/record/run_directory.h"
#include "runtime/supervise/decide/recovery.h"
#include "runtime/supervise/attempt/run_log.h"
#include "runtime/supervise/nodes/run_nodes.h"
#include "runtime/supervise/loop/slurm_job.h"

namespace trainctl {

struct SupervisePlan {
  ParsedJob job;
  std::string run_id;                 ///< shown to people: the name of the run's folder
  std::string name;                   ///< the run in advised commands, see command_name
  std::string program;                ///< this binary; a rank is `program rank RUN`
  std::string mpirun;                 ///< full path
  RunNodes nodes;                     ///< nodes that the run may use
  SlurmTies slurm;                    ///< the Slurm job of the run, if there is one
  std::optional<AttemptFile> attach;  ///< an attempt whose supervisor died and whose ranks may be alive
  bool cross_memory_attach = true;
  int64_t max_steps = 0;
  double matmul_flops_per_s = 0;
  uint64_t rank_room_bytes = 0;    ///< as in Preflight
  double val_bytes_per_token = 0;  ///< as in Preflight
  std::vector<std::string> data_files;  ///< as in Preflight
  std::string numerics;     ///< Backend::numerics of the devices, see run_numerics
  std::string change_json;  ///< fields of an event for changes that affect the numbers from here on; "": none
  std::vector<std::pair<EventKind, std::string>> events;  ///< from before there was a supervisor
  std::vector<int64_t> doubted;  ///< steps of checkpoints that did not open; are to be read again
  /// The other run's checkpoint from which this run began. An attempt begins there if the run has no
  /// checkpoint of its own.
  struct Start {
    std::string checkpoint;
    int64_t step = 0;
    bool new_data = false;
  };
  std::optional<Start> start;
  Remedies remedies;                ///< from the beginning on: of the run whose steps are computed again
  std::string lineage_json = "[]";  ///< see runtime/spec/lineage.h
  std::string resume_from;          ///< folder of the checkpoint; "": a fresh start, or resume_memory
  std::optional<Source> resume_memory;  ///< the state is in the memory of this machine
  bool resume_from_store = false;       ///< resume_from was copied from the store for this resume
  int64_t resume_step = 0;
  bool was_saved = false;     ///< the run saved a checkpoint before: it never begins again by itself
  bool resume_fixed = false;  ///< the user named the step: use no other checkpoint
  bool resume_asks_nodes =
      false;              ///< a newer state may be in the memory of the nodes: Recovery::Options::ask_nodes
  std::string take_over;  ///< why it replaces a supervisor that died, one sentence; "": a person started it
  /// The run's lock; outlives the supervisor. Null in tests: then it cannot be lost.
  const RunLock* lock = nullptr;
};

}  // namespace trainctl
