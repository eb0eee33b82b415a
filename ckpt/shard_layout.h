// A shard before it is written: which chunk comes where, and the hashes that are taken on the way. Shared by
// the writers of shards (write.cpp, pieces.cpp).
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "runtime/base/hash.h"

namespace trainctl::ckpt {

/// The receipt's entries in the order of the file, each with the memory of its chunk. Entries have no hashes
/// yet, and the receipt has no file name.
struct ShardLayout {
  ShardReceipt receipt;
  std::string header;  ///< the first bytes of the file; the chunks follow
  std::vector<std::span<const std::byte>> chunks;
};
/// has_rows_apart: whether the source of the chunks has.
ShardLayout lay_out(const StateInfo& state, std::span<const Tensor> tensors,
                    std::span<const ChunkData> chunks, bool has_rows_apart = false);

/// The memory through which a shard is written; a smaller shard takes no more than its size.
inline constexpr size_t kShardWriterBytes = size_t(8) << 20;

/// Calls with(part) for parts of `data` that stay in a core's cache while several loops read them; once,
/// if it is empty.
template <typename Do>
void in_parts(std::span<const std::byte> data, Do with) {
  constexpr size_t kMost = size_t(128) << 10;
  do {
    const auto part = data.first(std::min(kMost, data.size()));
    with(part);
    data = data.subspan(part.size());
  } while (!data.empty());
}

/// A hash of each of several chunks, fed piece by piece, one chunk after the other; its seed is seed(i).
class ChunkHashes {
 public:
  ChunkHashes(size_t count, std::function<uint64_t(size_t)> seed) : seed_(std::move(seed)), digests_(count) {}
  void update(size_t chunk, std::span<const std::byte> piece);
  const std::vector<uint64_t>& finish();

 private:
  std::function<uint64_t(size_t)> seed_;
  size_t current_ = 0;
  std::optional<Xxh3Stream> stream_;
  std::vector<uint64_t> digests_;
};
inline constexpr auto kNoChunkSeed = [](size_t) -> uint64_t { return 0; };

/// Both hashes of every entry, from one pass over the chunks in the order of the entries.
class EntryHashes {
 public:
  EntryHashes(const StateInfo& state, std::span<const ShardReceipt::Entry> entries);
  void update(size_t entry, std::span<const std::byte> piece);
  /// Sets the hashes of `entries`.
  void finish(std::span<ShardReceipt::Entry> entries);

 private:
  ChunkHashes identities_, contents_;
};

/// Appends a whole shard to a file, and returns the content hashes of the chunks that it has appended.
using AppendShard = std::function<std::vector<uint64_t>(NewFile& file)>;
using SetHashes = std::function<void(std::vector<ShardReceipt::Entry>& entries)>;

/// Writes a shard whose hashes are known, and compares them with what was written: Error(kCheckpoint) if a
/// chunk has changed. If a write or sync fails, the file is written once more under a new name; Error(kIo) if
/// that fails too.
///   set_hashes   called when all is written, to set the hashes then; empty: `receipt` has them
ShardReceipt write_hashed(SavingFiles& saving, const std::string& file_name, ShardReceipt receipt,
                          const AppendShard& append, const SetHashes& set_hashes = {});
/// The same through the memory of a writer.
ShardReceipt write_hashed(SavingFiles& saving, const std::string& file_name, const ShardLayout& layout,
                          ChunkSource& source, const SetHashes& set_hashes = {});

/// The new name after a failed write.
std::string retry_file_name(const std::string& file_name);

}  // namespace trainctl::ckpt
