// One save at a time: collects every rank's receipt and makes the checkpoint public, or says why not.
//
// Not thread-safe; begin, add and finish of one save follow each other. finish() may run on another thread as
// long as nothing else is called meanwhile (no rank begins the next save before it has the outcome of this
// one).
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"

namespace trainctl {

struct SaveOutcome {
  bool ok = false;
  int64_t step = 0;
  uint64_t bytes = 0;
  std::string message;                 ///< root hash when ok, else the reason
  std::string warning;                 ///< saved, but older checkpoints could not be tidied up
  std::vector<int64_t> removed_steps;  ///< by retention
  bool taken = false;                  ///< another supervisor has the run; `message` is RunTaken's
};

class SaveCollector {
 public:
  struct Options {
    int ranks = 1;
    std::string directory;  ///< of the checkpoints
    int keep_last = 2;
    int64_t keep_every_steps = 0;
    /// Called directly before a checkpoint becomes public, and before older ones are removed. Where it throws
    /// RunTaken, that is not done.
    std::function<void()> must_hold = [] {};
  };
  SaveCollector(FileSystem& fs, Options options) : fs_(fs), options_(std::move(options)) {}

  /// Makes the saving directory and forgets whatever an earlier, unfinished save left here. "" or the reason
  /// why not.
  std::string begin(const ckpt::StateInfo& state);

  /// The same for a save that a supervisor before may have begun: what ranks have written stays.
  std::string adopt(const ckpt::StateInfo& state);
  /// Of a save that a supervisor before has published; nothing if there is none of that step.
  std::optional<SaveOutcome> published(int64_t step) const;

  /// The global tensor list; from rank 0, before the last receipt.
  void set_tensors(std::vector<ckpt::Tensor> tensors) { tensors_ = std::move(tensors); }

  /// Takes a rank's receipt, or the reason why it could not write. True once every rank has handed in.
  bool add(int rank, ckpt::ShardReceipt receipt, const std::string& failure);

  /// After the last add: publishes and applies retention. Never throws: a failed save must not stop training.
  SaveOutcome finish();

  /// Ranks that have begun this save and have not handed in yet; empty when no save is under way.
  std::vector<int> missing() const;
  bool under_way() const { return under_way_; }
  const ckpt::StateInfo& state() const { return state_; }
  /// Gives up the save that is under way and removes its files.
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
