// Reading ahead: the disk has work while a core hashes and copies what it has read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace trainctl::ckpt {

/// How much is read before it is used.
struct Ahead {
  size_t most = 1;     ///< at most so much of what was read, or is being read, is not used yet
  size_t readers = 1;  ///< threads that read
};
/// Calls read(0), read(1).. in `ahead.readers` threads of its own, each in this order, and use(i) in this
/// one, in order, once read(i) has returned. Ends with the first error in the order of i, which it throws.
void read_ahead(size_t count, Ahead ahead, const std::function<void(size_t)>& read,
                const std::function<void(size_t)>& use);

struct FileRange {
  uint64_t offset = 0, bytes = 0;
  uint64_t end() const { return offset + bytes; }
  bool operator==(const FileRange&) const = default;
};
/// What to read of a file of `file_bytes` bytes to get `ranges`, which are in order and do not overlap: whole
/// pages, except at the end of the file, in blocks of at most `most` bytes (whole pages, too).
std::vector<FileRange> blocks_over(std::span<const FileRange> ranges, uint64_t file_bytes, uint64_t most);

}  // namespace trainctl::ckpt
