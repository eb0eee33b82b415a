// The contents of manifest.json and COMMIT: names of shard entries, identities and hashes of chunks. Pure;
// ckpt/FORMAT.md describes the format.
#pragma once
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/open_part.h"
#include "ckpt/pieces.h"
#include "ckpt/safetensors.h"

namespace trainctl::ckpt {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kCommitName = "COMMIT";

/// The box of a whole tensor, as a matrix.
parallel::Box whole_box(const std::vector<int64_t>& shape);
bool is_inside(const parallel::Box& inner, const parallel::Box& outer);

/// A box as text: "[r0:r1,c0:c1]", or "[r0:r1]" for a tensor with one dimension.
std::string box_text(const std::vector<int64_t>& shape, const parallel::Box& box);
/// A tensor for messages: "layers.0.weight first_moment".
std::string tensor_text(const std::string& name, Role role);
/// A chunk for messages: "layers.0.weight first_moment [0:4,0:8]", without the box if the chunk is the whole
/// tensor.
std::string chunk_text(const ShardReceipt::Entry& entry);
/// The key of a chunk in its shard: name, suffix of the role (none for master), and the box unless it is the
/// whole tensor.
std::string entry_name(const ShardReceipt::Entry& entry);

/// The seed of a chunk's hash: XXH3 of (run id, step, tensor, role, box).
uint64_t identity_seed(const StateInfo& state, const std::string& tensor, Role role, const parallel::Box& box);

/// Sorts the entries into the order of the file and sets offset, bytes and file_bytes. Returns the header of
/// the file.
std::string lay_out_shard(const StateInfo& state, ShardReceipt& shard);
/// The header with which the file of `shard` must begin, byte for byte.
std::string expected_header(const StateInfo& state, const ShardReceipt& shard);

/// The SHA-256 over the SHA-256 of all tensors, in the order of name and role. The hash of a tensor covers
/// its dtype, its shape and the content hash of each chunk in the order of boxes. Equal states on equal chunk
/// grids have equal root hashes, also if different ranks wrote the chunks.
std::string root_hash(std::span<const ShardReceipt> files);

struct Manifest {
  StateInfo state;
  std::vector<Tensor> tensors;
  std::vector<ShardReceipt> files;
  std::string root;
  uint64_t bytes = 0;   ///< size of all shard files
};
std::string manifest_text(const Manifest& manifest);
/// Error(kCheckpoint), one sentence with `path`, if the text is not a manifest of this version or is
/// inconsistent.
Manifest parse_manifest(const std::string& text, const std::string& path);
/// The manifest with the chunks that `wanted` needs, and the files that hold them, only. Reads `text` as a
/// stream and keeps nothing else of it. Checks what it can without the other chunks; that they tile the
/// tensors, and the root hash, must follow from the hash of the text. Errors as above, and those of the
/// stream.
Manifest parse_manifest_part(std::istream& text, const std::string& path, std::span<const WantedBox> wanted);
/// The text of piece.json (ckpt/pieces.h).
std::string piece_text(const Piece& piece);
/// Error(kCheckpoint), one sentence with `path`, if the text is not a piece of this version.
Piece parse_piece(const std::string& text, const std::string& path);
/// The field of COMMIT that holds the hash of a manifest with this text.
std::string manifest_field(const std::string& manifest_text);
/// The whole text of COMMIT for this manifest.
std::string commit_text(const std::string& manifest_text, const Manifest& manifest);

enum class ShardSizes {
  checked,    ///< each shard is there in its size
  unchecked,  ///< looked at when the shard is opened to read
};
/// A checkpoint of files whose manifest is known and was checked. The manifest may lack chunks of a tensor: a
/// read of them is Error(kCheckpoint).
std::unique_ptr<Checkpoint> open_with_manifest(std::unique_ptr<StoredFiles> files, Manifest manifest,
                                               ShardSizes sizes = ShardSizes::checked);

/// Error(kCheckpoint) if an element of a tensor is covered by no chunk or by several (names the first tensor,
/// row and column), or if a chunk belongs to a tensor that is not in `tensors`.
void check_tiling(std::span<const Tensor> tensors, std::span<const ShardReceipt> files);

}  // namespace trainctl::ckpt
