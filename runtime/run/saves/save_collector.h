// SaveCollector collects what the ranks hand in of their saves; several may be under way. SaveFolder
// publishes a save of which every rank has handed in, or reports why it failed.
//
// Neither is thread-safe.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"
#include "runtime/train/control/control.h"

namespace trainctl {

struct SaveOutcome {
  bool ok = false;
  int64_t step = 0;
  uint64_t bytes = 0;
  double cpu_s = 0;     ///< time of the cores that it took from all ranks
  std::string message;  ///< root hash if ok, otherwise the reason
  bool taken = false;   ///< another supervisor has taken the run; `message` is RunTaken's text
};

/// A save of which some ranks, or all, have handed in their part.
struct CollectedSave {
  int64_t number = 0;
  ckpt::StateInfo state;  ///< only epoch and step before rank 0 has handed in
  std::vector<ckpt::Tensor> tensors;
  std::vector<ckpt::ShardReceipt> receipts;
  std::vector<bool> handed_in;
  double cpu_s = 0;     ///< of all ranks
  std::string failure;  ///< of the first rank that could not write; "": none
};

/// Pure.
class SaveCollector {
 public:
  explicit SaveCollector(int ranks) : ranks_(ranks) {}

  /// Adds a rank's part; what the rank has handed in for this save already is ignored. Returns the save
  /// when it is complete, and forgets it.
  std::optional<CollectedSave> add(int rank, const Control::HandedIn& part);
  /// Whether some save is not complete.
  bool under_way() const { return !saves_.empty(); }
  /// The number of saves that are not complete.
  size_t size() const { return saves_.size(); }
  bool has(int64_t number) const { return saves_.contains(number); }
  /// The smallest number of a save that is not complete; nullopt: there is none.
  std::optional<int64_t> oldest() const;
  /// Forgets a save that is not complete; nullopt: there is no such save. Its files stay.
  std::optional<CollectedSave> take(int64_t number);
  /// Forgets all saves that are not complete. Their files stay.
  void forget() { saves_.clear(); }

 private:
  const int ranks_;
  std::map<int64_t, CollectedSave> saves_;  // by number
};

/// The checkpoints of a run, where an attempt publishes its saves.
class SaveFolder {
 public:
  struct Options {
    std::string directory;        ///< folder of the checkpoints
    uint64_t epoch = UINT64_MAX;  ///< of the attempt: saves of later ones are another supervisor's
    /// Called directly before a checkpoint is published, and after it. If it throws RunTaken before, nothing
    /// is published.
    std::function<void()> must_hold = [] {};
  };
  SaveFolder(FileSystem& fs, Options options) : fs_(fs), options_(std::move(options)) {}

  /// Publishes a complete save; removes the files of one that failed. Older checkpoints are removed later,
  /// when this one is verified (runtime/supervise/care/caretaker.h). Throws no Error, because a failed save
  /// must not stop training.
  SaveOutcome publish(const CollectedSave& save) const;
  /// Removes the files of a save that is not published.
  void remove(const ckpt::StateInfo& state) const;
  /// The outcome of a save of `epoch` that an earlier supervisor published, made durable: its files and its
  /// folder were synced before they were published, and the name of the folder is synced here, because the
  /// earlier supervisor may have ended between the rename and that. nullopt if there is no such save, or if
  /// it does not open (another save of the step may replace it), or if the name cannot be synced.
  std::optional<SaveOutcome> published(int64_t step, uint64_t epoch) const;
  /// Removes the files of all saves of this epoch and of older ones that are not published, also of those of
  /// which no rank has handed in. Call it when no rank is left. Throws no Error.
  void remove_all() const;

 private:
  FileSystem& fs_;
  const Options options_;
};

}  // namespace trainctl
