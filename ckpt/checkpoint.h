// Checkpoints: global tensors, cut into mesh-independent chunks. Each chunk is written once and verified by
// hashes; one rename publishes a checkpoint. ckpt/FORMAT.md gives the layout on disk.
//
// Writing: every rank calls write_shard for the chunks that it owns. One publisher (the supervisor, or rank 0
// in a test) collects the receipts and calls publish. Nothing here communicates. Reading: open the checkpoint
// and read any box of any tensor, independent of the mesh that wrote it.
//
// The functions in this header keep checkpoints in a folder. ckpt/store.h has them for every kind of store.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/layout.h"
#include "parallel/state_rows.h"
#include "runtime/base/dtype.h"
#include "runtime/base/file_system.h"
#include "runtime/base/words.h"

namespace trainctl::ckpt {

using Role = parallel::StateRole;
using parallel::name_of;

/// A global tensor. shape has one or two dimensions; as a matrix it is [shape[0], shape.size() == 2 ?
/// shape[1] : 1].
struct Tensor {
  std::string name;
  Role role = Role::master;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  bool operator==(const Tensor&) const = default;
};

/// The state except for its tensors. `extra_json` is a JSON object of the trainer (data position, schedule
/// state, losses, fingerprints).
struct StateInfo {
  std::string run_id;
  uint64_t epoch = 0;              ///< epoch of the attempt that saves
  int64_t step = 0;                ///< completed steps
  int64_t tokens = 0;
  uint64_t seed = 0;
  std::string spec_hash, program_version;
  std::string numerics;            ///< Backend::numerics of the devices of the last step; "": not recorded
  std::string lineage_json = "[]"; ///< parent runs and changes, a JSON list (runtime/spec/lineage.h)
  std::string extra_json = "{}";
  std::string resolved_spec_json = "{}";
};

/// One chunk to write: a box of a tensor. Its elements are contiguous, row-major in the box, in memory of the
/// ChunkSource, unless its rows lie apart.
struct ChunkData {
  int tensor = 0;                  ///< index into the tensor list given to write_shard
  parallel::Box box;
  const void* data = nullptr;
  /// Something lies between its rows, as in columns of a weight without master weights; `data` is the first
  /// one. Only for a source that has_rows_apart().
  bool rows_apart = false;
};

/// Reads chunks piece by piece, so that a save of state on a device needs no copy of the whole state in host
/// memory.
class ChunkSource {
 public:
  using Take = std::function<void(size_t chunk, std::span<const std::byte> piece)>;
  virtual ~ChunkSource() = default;
  /// Calls take(i, piece) for all pieces of chunks[0], then of chunks[1], ..., in the order of their bytes. A
  /// piece is in host memory and valid during the call.
  virtual void read(std::span<const std::span<const std::byte>> chunks, const Take& take) = 0;
  /// Whether several threads may call read() at once.
  virtual bool is_for_threads() const { return false; }
  /// Whether it knows where the rows of chunks are that lie apart.
  virtual bool has_rows_apart() const { return false; }
};
/// The source for chunks in host memory, all of them contiguous; each chunk is one piece.
ChunkSource& host_chunks();

/// The receipt for the file that a rank has written. It is sent to the publisher as JSON.
struct ShardReceipt {
  struct Entry {
    std::string tensor;
    Role role = Role::master;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;    ///< shape of the global tensor
    parallel::Box box;
    uint64_t offset = 0;           ///< start of the data in the file, in bytes
    uint64_t bytes = 0;
    /// XXH3 seeded with (run id, step, tensor, role, box): detects stale and swapped chunks.
    uint64_t hash = 0;
    uint64_t content_hash = 0;     ///< XXH3 of the bytes alone: identifies the content
  };
  std::string file;
  uint64_t file_bytes = 0;
  std::vector<Entry> entries;
  std::string to_json() const;
  static ShardReceipt from_json(const std::string& text);
};

/// <dir>/.saving/step-SSSSSSSS.eE for this state.
std::string saving_directory(const std::string& dir, const StateInfo& state);
/// <dir>/step-SSSSSSSS
std::string step_directory(const std::string& dir, int64_t step);
/// shard-00003-of-00016.safetensors
std::string shard_file_name(int index, int count);

/// Makes `dir` and the saving directory; removes an older attempt at the same step and epoch. Call it once,
/// before the shards are written.
void prepare_saving(FileSystem& fs, const std::string& dir, const StateInfo& state);

/// Removes what was written for a save that failed, unless another writer has it.
void remove_save(FileSystem& fs, const std::string& dir, const StateInfo& state);
/// Removes all saves of `epoch` and older ones that are not published.
void remove_saves(FileSystem& fs, const std::string& dir, uint64_t epoch);

/// Writes one strict safetensors shard (O_EXCL, large writes, fsync of file and folder). Reads the chunks
/// twice: to compute their hashes, and to write them. Error(kCheckpoint) if the two reads differ, because the
/// state has changed in between. If a write or sync fails, the file is abandoned and written once more under
/// a new name; Error(kIo) if that fails too.
ShardReceipt write_shard(FileSystem& fs, const std::string& saving_dir, const std::string& file_name,
                         const StateInfo& state, std::span<const Tensor> tensors, std::span<const ChunkData> chunks,
                         ChunkSource& source = host_chunks());

/// Publishes a checkpoint: checks that the receipts tile every tensor of `tensors` exactly, writes
/// manifest.json and COMMIT, and renames the saving directory to step-S, which is the commit point. Does not
/// apply retention (see retain). Returns the root hash in hex. Error(kCheckpoint) names the first hole or
/// overlap; Error(kIo).
///   before_rename   called directly before the commit point; if it throws, nothing is published
std::string publish(FileSystem& fs, const std::string& dir, const StateInfo& state, std::span<const Tensor> tensors,
                    std::span<const ShardReceipt> receipts, const std::function<void()>& before_rename = {});

/// Saves, publishes, reads and removes a checkpoint of 64 bytes in its own folder in `dir`, so that
/// operations that the file system refuses are found before a run depends on them. Throws Error(kIo) or
/// Error(kCheckpoint); leaves no files.
void try_saving(FileSystem& fs, const std::string& dir);

/// Checkpoints that a run moved aside when it went back to an earlier step, in <dir>/superseded-e<epoch>/.
struct Superseded {
  std::string path;
  uint64_t epoch = 0;            ///< the epoch that went back
  std::vector<int64_t> steps;    ///< newest first
  uint64_t bytes = 0;            ///< size of their shards
};
/// An epoch of a run, which begins from `step`. What older epochs computed beyond that step is no part of the
/// run any more.
struct EpochBegin {
  std::string run_id;
  uint64_t epoch = 0;
  int64_t step = 0;
  bool operator==(const EpochBegin&) const = default;
};
/// Begins an epoch in `dir`: from here on no older epoch publishes a step beyond it (ckpt/contest.h), and what
/// older epochs were saving is removed. Moves the checkpoints of later steps into superseded-e<epoch>/: the run
/// writes these steps again, and the old checkpoints must not be mistaken for the new ones. `steps` of the
/// result is empty if there were none. Error(kCheckpoint) if a newer epoch has begun.
Superseded supersede(FileSystem& fs, const std::string& dir, const EpochBegin& begin);
/// Puts back what a writer moved away from its name when it died. Call it before the newest checkpoint is
/// chosen.
void restore_moved(FileSystem& fs, const std::string& dir);
/// "9 checkpoints (steps 150 to 500), 25.1 MB in /run/ckpt/superseded-e3".
std::string text_of(const Superseded& superseded);
/// All superseded checkpoints in `dir`, ordered by epoch.
std::vector<Superseded> list_superseded(FileSystem& fs, const std::string& dir);

/// Applies retention: keeps the newest `keep_last` checkpoints (at least 2) and multiples of
/// `keep_every_steps`; renames the others to .trash/ and deletes them. Superseded checkpoints are deleted
/// when that many newer ones are kept that were saved by the epoch that set them aside or a later one. Also
/// cleans .trash, and .saving except for `current_saving`. Returns the removed steps.
std::vector<int64_t> retain(FileSystem& fs, const std::string& dir, int keep_last, int64_t keep_every_steps,
                            const std::string& current_saving);

/// The steps of all directories named step-*, newest first. Does not verify them.
std::vector<int64_t> list_steps(FileSystem& fs, const std::string& dir);

class StoredFiles;

/// A box to read of (name, role), and the memory for it.
struct BoxRead {
  std::string name;
  Role role = Role::master;
  parallel::Box box;
  void* out = nullptr;
  bool is_shared = false;  ///< others on this node read it, too: the system's cache helps
  bool as_f32 = false;     ///< of a tensor in f32 or bf16: into f32, as which bf16 loses nothing
};

/// For a reader of `dtype` in read_all(): where the stored numbers of the box come to, and what makes f32
/// of them there if the box wants that. bf16 lies in the second half of the memory until then.
void* stored_place(const BoxRead& box, DType dtype);
void make_f32(const BoxRead& box, DType dtype);

/// A published checkpoint. open() checks the manifest, COMMIT and the sizes of the files. Not thread-safe.
class Checkpoint {
 public:
  /// Error(kCheckpoint): `path` is not a checkpoint, the manifest is damaged (its SHA-256 differs from that
  /// in COMMIT), or a file is missing or has the wrong size.
  static std::unique_ptr<Checkpoint> open(FileSystem& fs, const std::string& path);
  /// From any store (ckpt/store.h).
  static std::unique_ptr<Checkpoint> open(std::unique_ptr<StoredFiles> files);
  virtual ~Checkpoint() = default;
  virtual const StateInfo& state() const = 0;
  virtual const std::vector<Tensor>& tensors() const = 0;
  virtual const std::vector<ShardReceipt>& files() const = 0;
  virtual std::string root_hash() const = 0;
  virtual std::string path() const = 0;
  virtual StoredFiles& stored() const = 0;   ///< the files of the checkpoint
  /// In which read() gives (name, role). Error(kCheckpoint) if there is no such tensor.
  virtual DType dtype_of(const std::string& name, Role role) const = 0;
  /// Reads `box` of (name, role) into out [box.rows * box.cols], row-major and contiguous. Verifies the hash
  /// of every chunk that it reads. Chunks are read whole and the last few are kept, so read neighbouring
  /// boxes one after another. Error(kCheckpoint) with file, tensor, box and offset if a hash differs or a
  /// tensor is missing.
  virtual void read(const std::string& name, Role role, const parallel::Box& box, void* out) = 0;
  /// The same for many boxes, in the order of the files: a thread of its own reads while this one verifies.
  ///   got   called in this thread with the bytes that have come since its last call
  virtual void read_all(std::span<const BoxRead> boxes, const std::function<void(uint64_t bytes)>& got) = 0;
  /// Whether the files have all of `box`. Only of pieces (open_pieces.h) may a part be missing.
  virtual bool has(const std::string& name, Role role, const parallel::Box& box) const = 0;
};

/// The newest checkpoint of `dir` that opens and whose step is at most max_step (< 0: any); null if there is
/// none. Calls `skipped` (path, reason) for each newer checkpoint that does not open.
std::unique_ptr<Checkpoint> open_latest(FileSystem& fs, const std::string& dir, int64_t max_step,
                                        const std::function<void(const std::string&, const std::string&)>& skipped);

struct VerifyFinding {
  std::string file, tensor, message;
  uint64_t offset = 0;
  bool is_unread = false;   ///< nothing is known of the bytes: they cannot be read, for now
};
struct VerifyReport {
  uint64_t files = 0, bytes = 0, chunks = 0, nan_values = 0, infinite_values = 0;
  std::vector<VerifyFinding> findings;   ///< empty: every byte is good
};
/// Reads every byte. Checks headers strictly, all chunk hashes and the root hash. Counts non-finite values.
VerifyReport verify(Checkpoint& checkpoint);

struct TensorStats {
  double mean = 0, std = 0, abs_max = 0;
  uint64_t nan_values = 0, infinite_values = 0, zeros = 0;
};
TensorStats stats(Checkpoint& checkpoint, const Tensor& tensor);

enum class DifferenceIn { only_in_a, only_in_b, shape, dtype, values };

struct Difference {
  std::string tensor;
  Role role = Role::master;
  DifferenceIn what = DifferenceIn::values;
  uint64_t differing = 0;                ///< in values: number of different elements
  double max_abs = 0;                    ///< largest absolute difference; infinite for NaN and infinity
};
/// The differences between two checkpoints. Compares content hashes first and reads only chunks that differ.
/// Equal states have no differences, also if different meshes wrote them.
std::vector<Difference> diff(Checkpoint& a, Checkpoint& b);

}  // namespace trainctl::ckpt

template <>
struct trainctl::Words<trainctl::ckpt::DifferenceIn> {
  static constexpr std::string_view list[] = {"only in A", "only in B", "shape", "dtype", "values"};
};
