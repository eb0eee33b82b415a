// Store: the interface of a place that keeps checkpoints. Each implementation has its own commit rule.
//
//     DirectoryStore   a folder: files are synced, then one rename publishes (ckpt/FORMAT.md); also on file
//                      systems that refuse a part of that
//     MemoryStore      memory of a node: two slots, the seal of a slot is written last
//     ObjectStore      an object store: COMMIT is the last object to be put
//
// The code above this interface is common to all stores: the layout of a shard, the manifest, COMMIT, hashes,
// tiling, retention. A store reads and writes named files and decides when a checkpoint is published. The
// bytes of a checkpoint are the same in every store, so it can be copied from one to another unchanged.
//
// Every store guarantees this at any moment, also after a crash of the writer, after a crash of the machine
// (if the store survives machines) and after a failed operation: readers see the old checkpoints, or these
// and one complete new one. When commit() has returned, the new checkpoint is published.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "runtime/base/file_system.h"

namespace trainctl::ckpt {

/// A file that is being written to a store. If it is destroyed before finish(), the file is discarded.
class NewFile {
 public:
  virtual ~NewFile() = default;
  virtual void append(std::span<const std::byte> data) = 0;
  /// Completes the file and makes it as durable as the store can. After Error(kIo) its contents are
  /// undefined.
  virtual void finish() = 0;
};

/// The files of one checkpoint in a store. Not thread-safe. Every call may throw Error(kIo).
class StoredFiles {
 public:
  virtual ~StoredFiles() = default;
  virtual std::string where() const = 0;                  ///< for messages: "/run/ckpt/step-00000010"
  /// The step in its name; nullopt: the name has none.
  virtual std::optional<int64_t> named_step() const = 0;
  virtual bool has(const std::string& name) = 0;
  virtual std::unique_ptr<File> open(const std::string& name) = 0;  ///< for reading
  /// The whole content of a file that lies in the memory of this process; empty if it does not. Valid as long
  /// as that memory.
  virtual std::span<const std::byte> in_memory(const std::string& name) {
    return (void)name, std::span<const std::byte>{};
  }
  /// Another copy of a file, for a chunk of it that is damaged: copy 0, 1, ...; null: there are no more. One
  /// that cannot be opened throws.
  virtual std::unique_ptr<File> open_other(const std::string& name, size_t copy) {
    return (void)name, (void)copy, nullptr;
  }
  virtual std::vector<std::string> names() = 0;                     ///< all of them, sorted
  /// Of a file system; open() may then be called by several threads at once.
  virtual bool are_on_disk() const { return false; }
  /// Starts a file of `bytes` bytes; its finish() replaces `name` atomically. Error(kUsage) if the store does
  /// not support this, which is the default.
  virtual std::unique_ptr<NewFile> replace(const std::string& name, uint64_t bytes);
  std::string read_text(const std::string& name);
};

/// A checkpoint that is being saved; readers do not see it. Writers in several processes may each have one
/// for the same state.
class SavingFiles : public StoredFiles {
 public:
  /// Makes space and removes the files of an earlier attempt at the same step and epoch. Call it once, before
  /// the first put.
  virtual void begin() = 0;
  /// Instead of begin(): makes the place of the save unless it is there, and keeps what other writers have
  /// put.
  virtual void join() {}
  /// Instead of begin(): a save of which this object writes every file. No other writer finds its place, and
  /// no claim() is needed.
  virtual void begin_alone() { begin(); }
  /// The publisher calls it before it looks at the files: from here on they are its own, and no other
  /// publisher's. Takes them over from a publisher of the same epoch that has not published yet, and calls
  /// `before_taking_over` first.
  virtual void claim(const std::function<void()>& before_taking_over) { (void)before_taking_over; }
  /// Gives back what was claimed; does nothing if another writer has it. Throws no Error.
  virtual void release() {}
  /// Whether another writer has taken the files from this one: it published, went on with them, or began a
  /// newer epoch.
  virtual bool is_lost() { return false; }
  /// Makes sure that a checkpoint of this step that another writer has published survives a crash.
  virtual void settle() {}
  /// Starts a new file of `bytes` bytes. No file may have this name.
  virtual std::unique_ptr<NewFile> put(const std::string& name, uint64_t bytes) = 0;
  virtual void remove(const std::string& name) = 0;
  /// Publishes the checkpoint with `text` as COMMIT; this is the commit point. Replaces a checkpoint of the
  /// same step. Calls is_wanted() as late as possible before. If that returns false, removes the saved files
  /// and publishes nothing; if it throws, publishes nothing.
  virtual void commit(const std::string& text, const std::function<bool()>& is_wanted) = 0;
  void put_text(const std::string& name, const std::string& text);
};

/// The checkpoints that retain() keeps.
struct Retention {
  int keep_last = 2;             ///< the newest checkpoints to keep; at least two are always kept
  int64_t keep_every_steps = 0;  ///< also keep multiples of this step number; 0: none
  /// Also keep the newest of this step or before that counts, or else the newest that is there.
  std::optional<int64_t> keep_upto = {};
  std::string current;           ///< where() of a current save, which is not removed
  /// The epoch of the caller: nor are saves of this epoch, and nothing of later ones. UINT64_MAX: the caller
  /// is the only writer, no save is under way.
  uint64_t current_epoch = UINT64_MAX;
  /// Whether a checkpoint that opens counts towards keep_last; empty: each does. One that does not count is
  /// removed only when keep_last newer ones count.
  std::function<bool(StoredFiles&)> counts = {};
  /// Whether a checkpoint that is not the newest is of no use: it is removed though fewer than keep_last
  /// newer ones count; empty: none is.
  std::function<bool(StoredFiles&)> is_useless = {};
};

/// Only one process at a time writes to a store: the holder of the run's lock. One that lost the lock and does
/// not know it harms nobody in a folder: there each change is checked by its effect (ckpt/contest.h). What an
/// object store does then is in ckpt/object_store.h. Not thread-safe.
class Store {
 public:
  virtual ~Store() = default;
  virtual std::string where() const = 0;  ///< for messages: "/run/ckpt"
  /// The files for a save of this state. Changes nothing until begin().
  virtual std::unique_ptr<SavingFiles> saving(const StateInfo& state) = 0;
  /// The steps of the published checkpoints, newest first. Does not verify them.
  virtual std::vector<int64_t> list() = 0;
  /// The checkpoint of this step; null if there is none.
  virtual std::unique_ptr<StoredFiles> open(int64_t step) = 0;
  /// Removes a checkpoint: new readers do not find it. clean() may free its bytes later. Returns false, and
  /// leaves it, if it is of a later epoch than `epoch`, the caller's.
  virtual bool remove(int64_t step, uint64_t epoch) = 0;
  /// Call it when a run begins an epoch: checkpoints of later steps are no longer listed.
  virtual void set_aside_after(const EpochBegin& begin) = 0;
  /// Puts back what a writer had moved from its name when it died.
  virtual void restore() {}
  /// Frees the bytes of removed checkpoints. `kept_epochs`: the epochs of the kept checkpoints.
  virtual void clean(const Retention& retention, const std::vector<uint64_t>& kept_epochs) = 0;
};

/// The store in a folder, as <dir> in FORMAT.md. `fs` must outlive it.
std::unique_ptr<Store> directory_store(FileSystem& fs, const std::string& dir);

/// write_shard, publish, retain, open_latest of checkpoint.h for any store.
ShardReceipt write_shard(SavingFiles& saving, const std::string& file_name, const StateInfo& state,
                         std::span<const Tensor> tensors, std::span<const ChunkData> chunks,
                         ChunkSource& source = host_chunks());
std::string publish(Store& store, const StateInfo& state, std::span<const Tensor> tensors,
                    std::span<const ShardReceipt> receipts, const std::function<void()>& before_commit = {});
/// True if the store holds this state already, saved by the same epoch with the same root hash. False if it
/// holds nothing of this step, or what may be replaced: of an older epoch, or damaged. Error(kCheckpoint) if
/// a newer or other one is there.
bool holds(Store& store, const StateInfo& state, const std::string& root);

struct CopyReport {
  uint64_t files = 0, chunks = 0, bytes = 0;
  bool was_there = false;  ///< nothing was copied: the store holds this state
};
/// Copies a whole checkpoint, byte for byte, and publishes it by the store's own rule. Every chunk is checked
/// on its way; Error(kCheckpoint) where one is damaged, and nothing is published.
CopyReport copy(Checkpoint& from, Store& to);
std::vector<int64_t> retain(Store& store, const Retention& retention);
std::unique_ptr<Checkpoint> open_latest(
    Store& store, int64_t max_step,
    const std::function<void(const std::string&, const std::string&)>& skipped);

}  // namespace trainctl::ckpt
