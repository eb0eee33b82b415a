// A checkpoint: global tensors cut into mesh-independent chunks, written once each, checked byte by byte,
// published by one rename. ckpt/FORMAT.md gives the layout on disk.
//
// Writing: every rank calls write_shard for the chunks it owns; one publisher (the supervisor, or rank 0 of a test)
// collects the receipts and calls publish. Nothing here communicates. Reading: open, then read any box of any tensor; the mesh
// that wrote it does not matter.
//
// The functions here keep checkpoints in a folder; ckpt/store.h has them for every kind of place.
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
#include "runtime/base/dtype.h"
#include "runtime/base/file_system.h"

namespace trainctl::ckpt {

enum class Role { master, first_moment, second_moment, gradient };
const char* name_of(Role);

/// A global tensor. shape has one or two dimensions; as a matrix it is [shape[0], shape.size() == 2 ? shape[1] : 1].
struct Tensor {
  std::string name;
  Role role = Role::master;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  bool operator==(const Tensor&) const = default;
};

/// What the state is besides tensors. `extra` is a JSON object of the trainer's (data cursor, schedule state, losses, fingerprints).
struct StateInfo {
  std::string run_id;
  uint64_t epoch = 0;              ///< of the run's membership
  int64_t step = 0;                ///< completed steps
  int64_t tokens = 0;
  uint64_t seed = 0;
  std::string spec_hash, program_version;
  std::string numerics;            ///< of the devices that computed the last step (Backend::numerics); "": not recorded
  std::string lineage_json = "[]"; ///< checkpoints of other runs and changes on the way here, a JSON list of the trainer's
  std::string extra_json = "{}";
  std::string resolved_spec_json = "{}";
};

/// One chunk to write: box of tensor, its elements contiguous (row-major in the box) in memory that a ChunkSource reads.
struct ChunkData {
  int tensor = 0;                  ///< index into the tensor list given to write_shard
  parallel::Box box;
  const void* data = nullptr;
};

/// Reads chunks piece by piece, so that state on a device is saved without a copy of all of it in host memory.
class ChunkSource {
 public:
  using Take = std::function<void(size_t chunk, std::span<const std::byte> piece)>;
  virtual ~ChunkSource() = default;
  /// Calls take(i, piece) for the pieces of chunks[0], then of chunks[1], ...: together all their bytes, in order. A piece is in host
  /// memory and valid during its call.
  virtual void read(std::span<const std::span<const std::byte>> chunks, const Take& take) = 0;
};
/// Of chunks in host memory: each is one piece.
ChunkSource& host_chunks();

/// What a rank wrote; travels to the publisher as JSON text.
struct ShardReceipt {
  struct Entry {
    std::string tensor;
    Role role = Role::master;
    DType dtype = DType::f32;
    std::vector<int64_t> shape;    ///< of the global tensor
    parallel::Box box;
    uint64_t offset = 0;           ///< of the data, from the start of the file
    uint64_t bytes = 0;
    uint64_t hash = 0;             ///< XXH3 seeded with (run id, step, tensor, role, box): catches stale and swapped chunks
    uint64_t content_hash = 0;     ///< XXH3 of the bytes alone: the identity of the content
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

/// Creates `dir`, `.saving/...`; removes an older attempt at the same step and epoch. Called once before the shards.
void prepare_saving(FileSystem& fs, const std::string& dir, const StateInfo& state);

/// Writes one strict safetensors shard (O_EXCL, large writes, fsync of file and folder). Reads the chunks twice: once to take their
/// hashes, once to write them; Error(kCheckpoint) where the two differ, because the state changed in between. A failed sync or
/// write: the file is abandoned and one new attempt is made under a new name. Throws Error(kIo) when that fails too.
ShardReceipt write_shard(FileSystem& fs, const std::string& saving_dir, const std::string& file_name,
                         const StateInfo& state, std::span<const Tensor> tensors, std::span<const ChunkData> chunks,
                         ChunkSource& source = host_chunks());

/// Checks that the receipts tile every tensor of `tensors` exactly, writes manifest.json and COMMIT, and renames to step-S: the
/// commit point. Then applies nothing else (see retain). Throws Error(kCheckpoint) naming the first hole or overlap, Error(kIo).
/// Returns the root hash (hex). `before_rename` is called directly before the commit point; where it throws,
/// nothing is published.
std::string publish(FileSystem& fs, const std::string& dir, const StateInfo& state, std::span<const Tensor> tensors,
                    std::span<const ShardReceipt> receipts, const std::function<void()>& before_rename = {});

/// Saves, publishes, reads back and removes a checkpoint of 64 bytes in a folder of its own in `dir`: whatever the file system
/// refuses is found before a run depends on it. Throws Error(kIo) or Error(kCheckpoint); leaves nothing.
void try_saving(FileSystem& fs, const std::string& dir);

/// Checkpoints that a run set aside when it went back to an earlier step, in <dir>/superseded-e<epoch>/.
struct Superseded {
  std::string path;
  uint64_t epoch = 0;            ///< that went back
  std::vector<int64_t> steps;    ///< newest first
  uint64_t bytes = 0;            ///< of their shards
};
/// Moves the checkpoints of steps beyond `step` into superseded-e<epoch>/: a run that goes back writes those steps anew, and an old
/// one must neither be in the way nor be taken for its own. `steps` is empty if there were none.
Superseded supersede(FileSystem& fs, const std::string& dir, int64_t step, uint64_t epoch);
/// "9 checkpoints (steps 150 to 500), 25.1 MB in /run/ckpt/superseded-e3".
std::string text_of(const Superseded& superseded);
/// All that are there, by epoch.
std::vector<Superseded> list_superseded(FileSystem& fs, const std::string& dir);

/// Renames to .trash/ and deletes all but the newest `keep_last` (at least 2 are always kept) and multiples of `keep_every_steps`;
/// superseded ones go once that many newer ones, saved by the epoch that set them aside or a later one, are kept.
/// Also cleans .trash and leftovers in .saving other than `current_saving`. Returns the removed steps.
std::vector<int64_t> retain(FileSystem& fs, const std::string& dir, int keep_last, int64_t keep_every_steps,
                            const std::string& current_saving);

/// Steps of all directories named step-*, newest first; nothing is verified.
std::vector<int64_t> list_steps(FileSystem& fs, const std::string& dir);

class StoredFiles;

/// A published checkpoint, opened and checked as far as manifest, COMMIT and file sizes. Not thread-safe.
class Checkpoint {
 public:
  /// Error(kCheckpoint): not a checkpoint, manifest damaged (its SHA-256 differs from COMMIT's), file missing or of the wrong size.
  static std::unique_ptr<Checkpoint> open(FileSystem& fs, const std::string& path);
  static std::unique_ptr<Checkpoint> open(std::unique_ptr<StoredFiles> files);   ///< of any store (ckpt/store.h)
  virtual ~Checkpoint() = default;
  virtual const StateInfo& state() const = 0;
  virtual const std::vector<Tensor>& tensors() const = 0;
  virtual const std::vector<ShardReceipt>& files() const = 0;
  virtual std::string root_hash() const = 0;
  virtual std::string path() const = 0;
  virtual StoredFiles& stored() const = 0;   ///< its files
  /// Reads `box` of (name, role) into out [box.rows * box.cols] row-major contiguous, verifying the hash of every chunk touched.
  /// Chunks are read whole and the last few kept, so read neighbouring boxes together. Error(kCheckpoint) naming file, tensor,
  /// box and offset when a hash differs or a tensor is absent.
  virtual void read(const std::string& name, Role role, const parallel::Box& box, void* out) = 0;
};

/// The newest checkpoint of `dir` that opens; those skipped are told to `skipped` (path, reason). max_step < 0: any.
std::unique_ptr<Checkpoint> open_latest(FileSystem& fs, const std::string& dir, int64_t max_step,
                                        const std::function<void(const std::string&, const std::string&)>& skipped);

struct VerifyFinding {
  std::string file, tensor, message;
  uint64_t offset = 0;
};
struct VerifyReport {
  uint64_t files = 0, bytes = 0, chunks = 0, nan_values = 0, infinite_values = 0;
  std::vector<VerifyFinding> findings;   ///< empty: every byte is good
};
/// Re-reads every byte: headers strict, chunk hashes, root hash, non-finite values counted.
VerifyReport verify(Checkpoint& checkpoint);

struct TensorStats {
  double mean = 0, std = 0, abs_max = 0;
  uint64_t nan_values = 0, infinite_values = 0, zeros = 0;
};
TensorStats stats(Checkpoint& checkpoint, const Tensor& tensor);

struct Difference {
  std::string tensor;
  Role role = Role::master;
  std::string what;                      ///< "only in A", "only in B", "shape", "dtype", "values"
  uint64_t differing = 0;                ///< elements, where values differ
  double max_abs = 0;                    ///< infinite if a NaN or infinity is involved
};
/// Compares content hashes first and reads only what differs. Identical states give an empty result whatever the meshes.
std::vector<Difference> diff(Checkpoint& a, Checkpoint& b);

}  // namespace trainctl::ckpt
