// Reads chunks out of many files through a small ring of memory: several blocks at a time, of one file or of
// several, so that a far file system has more than one request while a core hashes and copies.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/read_ahead.h"
#include "ckpt/shard_layout.h"

namespace trainctl::ckpt {

/// The ring: all the memory that a rank takes to load its state, apart from the place of the state itself and
/// from the rows of the manifest that it needs. No more than a save takes.
inline constexpr size_t kReaderBytes = kShardWriterBytes;
/// Threads that read. They wait for a disk or a server, so there may be more than cores.
inline constexpr size_t kReaders = 4;

/// The files of a checkpoint that are open for reading. A file is read by one thread at a time; another one
/// that comes meanwhile opens it once more. Thread-safe.
class OpenShards {
 public:
  using Open = std::function<std::unique_ptr<File>(const ShardReceipt&)>;
  /// `open` is called by one thread at a time unless `several_may_open`.
  OpenShards(Open open, bool several_may_open)
      : open_(std::move(open)), several_may_open_(several_may_open) {}
  /// Fills `data` from byte `offset` of the file of `shard`. Error(kIo), also of `open`.
  void read(const ShardReceipt& shard, uint64_t offset, std::span<std::byte> data);

 private:
  struct Idle {
    const ShardReceipt* shard;
    std::unique_ptr<File> file;
  };
  std::unique_ptr<File> take(const ShardReceipt& shard);
  const Open open_;
  const bool several_may_open_;
  std::mutex mutex_;        // guards idle_
  std::vector<Idle> idle_;  // the last one was used last
};

/// Bytes to read of a file.
struct ShardRange {
  const ShardReceipt* shard = nullptr;
  FileRange range;
};
struct StreamOptions {
  size_t readers = 1;
  bool past_cache = false;  ///< ask the disk, not the system's cache
};
/// Reads `ranges`, which are grouped by file and in a file in order and without overlap. Calls take(i, piece)
/// in this thread for all pieces of ranges[0], then of ranges[1], ..., in the order of their bytes; an empty
/// range has no piece. Error(kIo).
void stream(std::span<const ShardRange> ranges, OpenShards& files, StreamOptions options,
            const std::function<void(size_t range, std::span<const std::byte> piece)>& take);

}  // namespace trainctl::ckpt
