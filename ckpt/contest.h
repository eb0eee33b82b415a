// What keeps two writers of one folder of checkpoints from harming each other. The lock of a run cannot: its
// holder may have been stopped between its look at the lock and its next rename, while another took the run
// over. So each writer relies on its own renames alone, each of which moves a folder for one writer only:
//
//   claim   a publisher renames .saving/step-S.eE to a name of its own before it looks at the files
//   mark    a new epoch makes the folder .epochs/e7-from-00001200-HASH, then renames older claims away. A
//           publisher that has claimed looks for marks. Whichever comes second sees the other.
//   move    a published checkpoint leaves its name only by a rename to a name of the writer's own,
//           .saving/moved-step-S.WORD; then the writer looks at what it moved, and puts back what it did not
//           mean: what a newer epoch saved, or a newer writer needs. restore_moved() does so for the dead.
//
// So at any moment each published checkpoint is at its name, in superseded-eE/, or in .saving/moved-*.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "ckpt/checkpoint.h"
#include "ckpt/store.h"

namespace trainctl::ckpt {

/// Which state a checkpoint is, by its COMMIT.
struct CommitId {
  std::string run_id;
  uint64_t epoch = 0;
  int64_t step = 0;
  std::string root;
};
std::optional<CommitId> read_commit(const std::string& text);
/// Of the checkpoint in the folder `path`; nullopt if there is none or its COMMIT cannot be read.
std::optional<CommitId> commit_of(FileSystem& fs, const std::string& path);

/// True if the checkpoint that is there is this state of this epoch. False if it may be replaced: it is of an
/// older epoch, or damaged. Error(kCheckpoint) if it is a newer or other one.
bool is_equal(std::unique_ptr<StoredFiles> there, uint64_t epoch, const std::string& root);

/// Of a name in .saving/: step-SSSSSSSS.eE, or with .WORD after it when a publisher has claimed it.
struct SavingName {
  int64_t step = 0;
  uint64_t epoch = 0;
  std::string claim;
};
std::optional<SavingName> saving_name(const std::string& name);
/// The names in .saving/ of claims of this step and epoch.
std::vector<std::string> claims_of(FileSystem& fs, const std::string& dir, int64_t step, uint64_t epoch);

/// The epoch that began before `step`, which `epoch` of the run wants to publish; nullopt if there is none.
std::optional<EpochBegin> epoch_against(FileSystem& fs, const std::string& dir, const std::string& run_id,
                                        uint64_t epoch, int64_t step);
/// Whether an epoch newer than `epoch` of the run has begun.
bool has_newer_epoch(FileSystem& fs, const std::string& dir, const std::string& run_id, uint64_t epoch);
/// Leaves the mark of an epoch, durably. Error(kCheckpoint) if a newer one has begun.
void mark_epoch(FileSystem& fs, const std::string& dir, const EpochBegin& begin);
/// Removes that mark: the epoch has not begun after all.
void withdraw_mark(FileSystem& fs, const std::string& dir, const EpochBegin& begin);
/// supersede() for an epoch that goes on from the checkpoint begin.step of this folder. An older epoch's
/// retention may have removed it since it was chosen: then nothing is set aside, the epoch has not begun, and
/// Error(kCheckpoint) says so. Where it returns, no older epoch removes the checkpoint any more.
Superseded supersede_from_here(FileSystem& fs, const std::string& dir, const EpochBegin& begin);

/// Moves every save in .saving/ of which `is_kept` (of its name in .saving/) is false to .trash/, until
/// none is left. Others may claim and give back meanwhile.
void sweep_saving(FileSystem& fs, const std::string& dir,
                  const std::function<bool(const std::string&)>& is_kept);
/// Deletes what is in .trash/.
void empty_trash(FileSystem& fs, const std::string& dir);

/// Moves a folder. Returns false, and moves nothing, if it is not there or the new name is taken.
bool try_move(FileSystem& fs, const std::string& from, const std::string& to);
/// Moves step-S to a name of one's own in .saving/. Returns the new path; "" if step-S is not there.
std::string take_away(FileSystem& fs, const std::string& dir, int64_t step);
/// Moves what take_away moved to .trash/, unless another writer has moved it.
void discard_moved(FileSystem& fs, const std::string& dir, const std::string& path);
/// Puts a checkpoint that take_away moved back to its name, durably, unless another has done so. Of two
/// checkpoints of a step the later epoch's stays, and the other is moved to .trash/. If its run has left it
/// behind meanwhile, it is set aside as supersede() does.
void put_back(FileSystem& fs, const std::string& dir, const std::string& path, int64_t step);
/// put_back() that reports no Error: after another error, which is the one to report.
void try_put_back(FileSystem& fs, const std::string& dir, const std::string& path, int64_t step);

/// Moves step-S to superseded-eE/ if it is of an epoch before E. Returns whether it did.
bool set_aside(FileSystem& fs, const std::string& dir, int64_t step, uint64_t epoch);

}  // namespace trainctl::ckpt
