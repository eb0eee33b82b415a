// Runs a whole job in this process, every rank a thread: the Trainer that `trainctl rank` runs, too.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/spec/fields/job.h"
#include "runtime/train/control/control.h"
#include "runtime/train/control/event_kind.h"
#include "runtime/train/control/remedies.h"
#include "runtime/train/control/replica_dispute.h"
#include "runtime/train/save/device_copies.h"

namespace trainctl::test {

struct ThreadRunOptions {
  std::string dir;  ///< folder for checkpoints (created); "": the job saves none
  std::string resume_from;
  std::string gradients_dir;
  int64_t max_steps = 0;
  bool reference_backend = false;
  /// The device of rank `rank`, instead of the CPU.
  std::function<std::unique_ptr<kernels::Backend>(int rank)> make_backend;
  /// The world of device memory over the threads' world, which it takes over; called by every rank's thread.
  std::function<std::unique_ptr<parallel::Communicator>(std::unique_ptr<parallel::Communicator> host,
                                                        kernels::Backend&)>
      make_world;
  double deadline_s = 600;
  size_t most_staging_bytes = kStagingBytes;
  std::string memory_folder;  ///< for copies of the state in memory; "": none
  /// For second copies, as if each half of the ranks were a node; "": none.
  std::string partner_folder;
  FileSystem* checkpoint_files =
      nullptr;  ///< for the ranks' and the publisher's files; null: unsynced_files()
  std::function<void(EventKind, const std::string&)> on_event;  ///< called for each event, under a lock
  std::function<void()> on_report;                   ///< called by rank 0 within its report of each step
  std::function<void(const StepLine&)> on_line;      ///< likewise; what it throws ends the run
  std::vector<std::string>* rank_lines = nullptr;    ///< gets the lines of metrics.ranks.jsonl
  std::vector<std::string>* expert_lines = nullptr;  ///< gets the lines of metrics.experts.jsonl
  Remedies remedies = {};                            ///< what was decided about the run's loss
  std::vector<ReplicaDispute> disputes = {};         ///< of replicas in earlier attempts
  TraceOrder trace = {};  ///< an order that the ranks have from the beginning; number 0: none
};

struct ThreadRun {
  std::vector<double> losses, grad_norms, val_losses;
  std::vector<std::string> lines;          ///< what rank 0 reported of each step
  std::map<int64_t, std::string> digests;  ///< of the states after these steps, where one was made
  std::string root_hash;                   ///< of the newest checkpoint
  std::string checkpoint;                  ///< its folder
  std::vector<size_t> allocated_bytes;     ///< [rank] the most device memory it ever held
};

/// Of the steps that both runs digested, among them the last one. When a state is saved besides, it has one
/// more.
bool have_equal_digests(const ThreadRun& a, const ThreadRun& b);

/// Throws the first rank's Error that is not a lost peer; std::logic_error where the job saves and there is
/// no folder for that.
ThreadRun run_on_threads(const JobSpec& job, const ThreadRunOptions& options);

/// A tiny model (gpt2 or llama) and a token file in `dir`: 4 layers, 4 heads, 2 KV heads for llama; global
/// batch 8 x 16 tokens.
JobSpec tiny_job(Family family, const std::string& dir);

/// A golden case's training, on dir/tokens.bin: batch, optimizer and schedule; the model is the caller's.
JobSpec golden_training(const std::string& dir, const Json& train);

/// The job of a golden case (test/golden/<name>), 20 steps.
JobSpec golden_job(const std::string& name);

}  // namespace trainctl::test
