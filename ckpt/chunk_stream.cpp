#include "ckpt/chunk_stream.h"

#include <algorithm>

#include "ckpt/page_memory.h"

namespace trainctl::ckpt {
namespace {

constexpr size_t kBlockBytes = kReaderBytes / (2 * kReaders);
constexpr size_t kMostIdle = 32;

/// A read of one block of the ring, and the first range in it.
struct Block {
  const ShardReceipt* shard;
  FileRange range;
  size_t first;
};

std::vector<Block> blocks_of(std::span<const ShardRange> ranges) {
  std::vector<Block> blocks;
  for (size_t begin = 0, end = 0; begin < ranges.size(); begin = end) {
    const ShardReceipt* const shard = ranges[begin].shard;
    std::vector<FileRange> of_file;
    for (; end < ranges.size() && ranges[end].shard == shard; ++end) of_file.push_back(ranges[end].range);
    size_t first = begin;
    for (const FileRange& block : blocks_over(of_file, shard->file_bytes, kBlockBytes)) {
      while (first < end && ranges[first].range.end() <= block.offset) ++first;
      blocks.push_back({shard, block, first});
    }
  }
  return blocks;
}

}  // namespace

void OpenShards::read(const ShardReceipt& shard, uint64_t offset, std::span<std::byte> data) {
  std::unique_ptr<File> file = take(shard);
  file->read_at(offset, data);
  const std::lock_guard lock(mutex_);
  if (idle_.size() >= kMostIdle) idle_.erase(idle_.begin());
  idle_.push_back({&shard, std::move(file)});
}

std::unique_ptr<File> OpenShards::take(const ShardReceipt& shard) {
  std::unique_lock lock(mutex_);
  const auto at = std::find_if(idle_.begin(), idle_.end(), [&](const Idle& i) { return i.shard == &shard; });
  if (at != idle_.end()) {
    std::unique_ptr<File> file = std::move(at->file);
    idle_.erase(at);
    return file;
  }
  if (several_may_open_) lock.unlock();
  return open_(shard);
}

void stream(std::span<const ShardRange> ranges, OpenShards& files, StreamOptions options,
            const std::function<void(size_t range, std::span<const std::byte> piece)>& take) {
  const std::vector<Block> blocks = blocks_of(ranges);
  const size_t slots = std::min(blocks.size(), kReaderBytes / kBlockBytes);
  size_t slot_bytes = 0;  // of a small state, no more than a block of it
  for (const Block& block : blocks) slot_bytes = std::max<size_t>(slot_bytes, block.range.bytes);
  slot_bytes = (slot_bytes + PageMemory::kPage - 1) / PageMemory::kPage * PageMemory::kPage;
  // Blocks are whole pages of the file: read into whole pages of memory, they come past the system's cache.
  const size_t shift = options.past_cache ? 0 : alignof(std::max_align_t);
  const PageMemory memory(slots * slot_bytes + shift);
  const auto place = [&](size_t i) {
    return std::span(memory.data() + i % slots * slot_bytes + shift, blocks[i].range.bytes);
  };
  read_ahead(
      blocks.size(), {.most = slots, .readers = options.readers},
      [&](size_t i) { files.read(*blocks[i].shard, blocks[i].range.offset, place(i)); },
      [&](size_t i) {
        const Block& block = blocks[i];
        for (size_t r = block.first; r < ranges.size() && ranges[r].shard == block.shard; ++r) {
          const FileRange& range = ranges[r].range;
          if (range.offset >= block.range.end()) break;
          const uint64_t begin = std::max(range.offset, block.range.offset);
          const uint64_t end = std::min(range.end(), block.range.end());
          if (begin < end) take(r, place(i).subspan(begin - block.range.offset, end - begin));
        }
      });
}

}  // namespace trainctl::ckpt
