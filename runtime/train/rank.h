// What a rank of a run is given in addition to its job.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/open_pieces.h"
#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "runtime/plan/rank_sizes.h"
#include "runtime/spec/fields/job.h"
#include "runtime/train/control/control.h"
#include "runtime/train/control/remedies.h"
#include "runtime/train/control/replica_dispute.h"
#include "runtime/train/measure/node_ranks.h"
#include "runtime/train/save/save_interval.h"

namespace trainctl {

/// A state in the memory of the nodes (ckpt/open_pieces.h).
struct MemoryLoad {
  ckpt::PieceSet set;
  /// The pieces of a rank of the set on a node that holds them: copy 0 is the one to take, others are for what
  /// is damaged there. Empty: all pieces are in memory_folder.
  ckpt::OtherPieces elsewhere = {};
  /// The bytes that were read from there.
  std::shared_ptr<std::atomic<uint64_t>> read_elsewhere = std::make_shared<std::atomic<uint64_t>>(0);
};

struct RankOptions {
  std::string run_id;
  std::string resolved_spec_json, spec_hash;
  std::string checkpoint_dir;         ///< folder for checkpoints: <run>/ckpt
  std::string memory_folder;          ///< for copies of the state in memory (ckpt/pieces.h); "": none
  std::string scratch_folder;         ///< of the attempt, on a disk of this node; "": /tmp
  std::string resume_from;            ///< a step directory; "": a fresh start, or `memory`
  std::string resume_manifest;        ///< SHA-256 of its manifest; "": its COMMIT says it
  bool from_store = false;            ///< resume_from is a copy out of checkpoint.store
  std::optional<MemoryLoad> memory;   ///< load this state from memory_folder
  /// Opens the memory of another node for second copies of what this rank keeps; empty: there is none. Error(kIo).
  std::function<std::unique_ptr<ckpt::NodeMemory>(uint64_t bytes)> partner = {};
  /// Read the data from their start, not from the position of resume_from.
  bool new_data = false;
  std::string lineage_json = "[]";    ///< lineage to write into checkpoints
  uint64_t epoch = 0;                 ///< epoch of this attempt
  int64_t max_steps = 0;              ///< stop after this step; 0: after schedule.total_steps
  /// Write the first step's gradients here, as a checkpoint of role gradient; "": do not.
  std::string gradients_dir;
  double matmul_flops_per_s = 0;      ///< peak of a rank for MFU; 0: unknown
  size_t most_staging_bytes = kStagingBytes;   ///< limit of the pinned host memory for saving and loading
  std::vector<SaveHistory> saves;     ///< what earlier attempts tell about saves and failures
  std::vector<NodeRanks> nodes;                ///< the ranks of each node, in order; empty: one machine
  std::string data_record = {};       ///< the run's data as it began (data/data_record.h); "": not compared
  Remedies remedies = {};             ///< what was decided about the run's loss so far
  std::vector<ReplicaDispute> disputes = {};  ///< that the steps of this attempt may settle
  int gpu = -1;                       ///< index of this rank's GPU, for readings from the driver; -1: none
};

}  // namespace trainctl
