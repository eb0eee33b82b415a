// What a checkpoint says about itself: names of shard entries, identities and hashes of chunks, the texts of manifest.json
// and COMMIT. Pure functions; ckpt/FORMAT.md describes the result.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"

namespace trainctl::ckpt {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kCommitName = "COMMIT";

/// All of a tensor, as a matrix.
parallel::Box whole_box(const std::vector<int64_t>& shape);
bool is_inside(const parallel::Box& inner, const parallel::Box& outer);

/// "[r0:r1,c0:c1]", or "[r0:r1]" for a tensor of one dimension.
std::string box_text(const std::vector<int64_t>& shape, const parallel::Box& box);
/// "layers.0.weight first_moment", for messages.
std::string tensor_text(const std::string& name, Role role);
/// "layers.0.weight first_moment [0:4,0:8]", without the box where the chunk is the whole tensor; for messages.
std::string chunk_text(const ShardReceipt::Entry& entry);
/// Key of a chunk in its shard: name, suffix of the role (none for master), box unless it is the whole tensor.
std::string entry_name(const ShardReceipt::Entry& entry);

/// Seed of a chunk's hash: XXH3 of (run id, step, tensor, role, box).
uint64_t identity_seed(const StateInfo& state, const std::string& tensor, Role role, const parallel::Box& box);

/// Sorts the entries as they stand in the file and sets offset, bytes and file_bytes. Returns the header that goes before the data.
std::string lay_out_shard(const StateInfo& state, ShardReceipt& shard);
/// The header that the file of `shard` must begin with, byte for byte.
std::string expected_header(const StateInfo& state, const ShardReceipt& shard);

/// SHA-256 over the SHA-256 of every tensor, in order of name and role; a tensor's covers dtype, shape and the content hash of
/// each chunk in order of box. Equal for equal state on equal chunk grids, whichever rank wrote which chunk.
std::string root_hash(std::span<const ShardReceipt> files);

struct Manifest {
  StateInfo state;
  std::vector<Tensor> tensors;
  std::vector<ShardReceipt> files;
  std::string root;
  uint64_t bytes = 0;   ///< of all shard files
};
std::string manifest_text(const Manifest& manifest);
/// Error(kCheckpoint) with one sentence, `path` named, if the text is not a manifest of this version or contradicts itself.
Manifest parse_manifest(const std::string& text, const std::string& path);
/// COMMIT's whole text, which follows from the manifest's.
std::string commit_text(const std::string& manifest_text, const Manifest& manifest);

/// Error(kCheckpoint) naming the first tensor, and row and column in it, that no chunk or more than one chunk covers, and chunks of
/// tensors that are not in `tensors`.
void check_tiling(std::span<const Tensor> tensors, std::span<const ShardReceipt> files);

}  // namespace trainctl::ckpt
