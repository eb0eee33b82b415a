// SaveCollector collects the receipts of all ranks for one save, then publishes the checkpoint or reports why
// it failed.
//
// Not thread-safe. The calls for one save come in the order begin, add, finish. finish() may run on another
// thread if no other call is made meanwhile; ranks begin the next save only after they have the outcome of
// this one.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/problem.h"

namespace trainctl {

struct SaveOutcome {
  bool ok = false;
  int64_t step = 0;
  uint64_t bytes = 0;
  std::string message;                 ///< root hash if ok, otherwise the reason
  std::string warning;                 ///< why older checkpoints could not be removed; "": no problem
  std::vector<int64_t> removed_steps;  ///< checkpoints that retention removed
  bool taken = false;                  ///< another supervisor has taken the run; `message` is RunTaken's text
};

class SaveCollector {
 public:
  struct Options {
    int ranks = 1;
    std::string directory;  ///< folder of the checkpoints
    int keep_last = 2;
    int64_t keep_every_steps = 0;
    /// Called directly before a checkpoint is published and before older ones are removed. If it throws
    /// RunTaken, the collector does not publish or remove.
    std::function<void()> must_hold = [] {};
  };
  SaveCollector(FileSystem& fs, Options options) : fs_(fs), options_(std::move(options)) {}

  /// Begins a save: makes the saving directory and removes what an unfinished save left there. Returns the
  /// reason why it failed, if it did.
  Problem begin(const ckpt::StateInfo& state);

  /// Like begin, for a save that an earlier supervisor may have begun: keeps the files that ranks have
  /// written.
  Problem adopt(const ckpt::StateInfo& state);
  /// The outcome of a save that an earlier supervisor published; nullopt if `step` has no checkpoint.
  std::optional<SaveOutcome> published(int64_t step) const;

  /// Sets the global tensor list. Rank 0 sends it; call this before the last add.
  void set_tensors(std::vector<ckpt::Tensor> tensors) { tensors_ = std::move(tensors); }

  /// Adds a rank's receipt. `failure`: why the rank could not write, "" if it could. Returns true when every
  /// rank has handed in.
  bool add(int rank, ckpt::ShardReceipt receipt, const std::string& failure);

  /// Call after the last add: publishes the checkpoint and applies retention. Does not throw Error, because a
  /// failed save must not stop training.
  SaveOutcome finish();

  /// Ranks that have not handed in yet; empty when no save is under way.
  std::vector<int> missing() const;
  bool under_way() const { return under_way_; }
  const ckpt::StateInfo& state() const { return state_; }
  /// Gives up the current save, if there is one, and removes its files.
  void abandon();

 private:
  void expect(const ckpt::StateInfo& state);
  void remove_saving_directory();

  FileSystem& fs_;
  Options options_;
  bool under_way_ = false;
  ckpt::StateInfo state_;
  std::vector<ckpt::Tensor> tensors_;
  std::vector<ckpt::ShardReceipt> receipts_;
  std::vector<bool> handed_in_;
  std::string failure_;
};

}  // namespace trainctl
