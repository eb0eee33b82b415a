// A place that keeps checkpoints: one seam, several kinds of place, each with its own commit rule.
//
//     DirectoryStore   a folder: files are synced, then one rename publishes (ckpt/FORMAT.md); also on file
//                      systems that refuse a part of that
//     MemoryStore      memory of a node: two slots, the seal of a slot is written last
//     ObjectStore      an object store: COMMIT is the last object to be put
//
// What is common stands above the seam: the layout of a shard, the manifest, COMMIT, hashes, tiling, which
// checkpoints are kept. A store moves named files of bytes and decides what "published" means. The bytes of
// a checkpoint are the same in every store, so that it can be copied from one to another as it is.
//
// The promise of every store, whatever happens at any moment (a crash of the writer, of the machine where the
// store outlives machines, a failed operation): readers see the checkpoints that were there, or those and one
// complete new one. What commit() has returned for is there afterwards.
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

/// A file being written to a store. Destroyed before finish(): the file is abandoned.
class NewFile {
 public:
  virtual ~NewFile() = default;
  virtual void append(std::span<const std::byte> data) = 0;
  /// The file is complete, and as safe as this store makes things. Error(kIo): nothing is known of it.
  virtual void finish() = 0;
};

/// The files of one checkpoint in a store. Not thread-safe. Every call may throw Error(kIo).
class StoredFiles {
 public:
  virtual ~StoredFiles() = default;
  virtual std::string where() const = 0;                  ///< for messages: "/run/ckpt/step-00000010"
  virtual std::optional<int64_t> named_step() const = 0;  ///< the step under which it was found
  virtual bool has(const std::string& name) = 0;
  virtual std::unique_ptr<File> open(const std::string& name) = 0;  ///< for reading
  virtual std::vector<std::string> names() = 0;                     ///< all of them, sorted
  /// Writes a file of `bytes` bytes; finish() replaces `name` by it in one step. Error(kUsage) where the
  /// store cannot: the default.
  virtual std::unique_ptr<NewFile> replace(const std::string& name, uint64_t bytes);
  std::string read_text(const std::string& name);
};

/// A checkpoint being saved: no reader sees it. Writers in several processes may hold one each of the same
/// state.
class SavingFiles : public StoredFiles {
 public:
  /// Makes room; removes what an earlier attempt at the same step and epoch left. Once, before the first put.
  virtual void begin() = 0;
  /// A new file of `bytes` bytes; its name must be free.
  virtual std::unique_ptr<NewFile> put(const std::string& name, uint64_t bytes) = 0;
  virtual void remove(const std::string& name) = 0;
  /// The commit point: `text` becomes COMMIT and the checkpoint is published. is_wanted() is called as late
  /// as possible before that; where it returns false what was saved is removed instead, where it throws
  /// nothing is published. A checkpoint of the same step is replaced.
  virtual void commit(const std::string& text, const std::function<bool()>& is_wanted) = 0;
  void put_text(const std::string& name, const std::string& text);
};

/// What stays of a store; see retain().
struct Retention {
  int keep_last = 2;             ///< at least two are always kept
  int64_t keep_every_steps = 0;  ///< multiples of it are kept, 0: none
  std::string current;           ///< where() of a saving under way, which is left alone
};

/// One process writes to a store at a time: the holder of the run's lock. Not thread-safe.
class Store {
 public:
  virtual ~Store() = default;
  virtual std::string where() const = 0;  ///< for messages: "/run/ckpt"
  /// Has no effect yet.
  virtual std::unique_ptr<SavingFiles> saving(const StateInfo& state) = 0;
  /// Steps of the published checkpoints, newest first; their content is not verified.
  virtual std::vector<int64_t> list() = 0;
  /// Null if there is none of this step.
  virtual std::unique_ptr<StoredFiles> open(int64_t step) = 0;
  /// Readers that come later do not find it. Its bytes may go only with clean().
  virtual void remove(int64_t step) = 0;
  /// A run goes back to `step` in a new epoch: later checkpoints are no longer listed.
  virtual void set_aside_after(int64_t step, uint64_t epoch) = 0;
  /// Frees what is no part of the store any more. `kept_epochs`: of the checkpoints that count as kept.
  virtual void clean(const Retention& retention, const std::vector<uint64_t>& kept_epochs) = 0;
};

/// The folder <dir> of FORMAT.md. `fs` outlives it.
std::unique_ptr<Store> directory_store(FileSystem& fs, const std::string& dir);

/// write_shard, publish, retain, open_latest of checkpoint.h for any store.
ShardReceipt write_shard(SavingFiles& saving, const std::string& file_name, const StateInfo& state,
                         std::span<const Tensor> tensors, std::span<const ChunkData> chunks,
                         ChunkSource& source = host_chunks());
std::string publish(Store& store, const StateInfo& state, std::span<const Tensor> tensors,
                    std::span<const ShardReceipt> receipts, const std::function<void()>& before_commit = {});
std::vector<int64_t> retain(Store& store, const Retention& retention);
std::unique_ptr<Checkpoint> open_latest(
    Store& store, int64_t max_step,
    const std::function<void(const std::string&, const std::string&)>& skipped);

}  // namespace trainctl::ckpt
