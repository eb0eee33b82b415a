// MappedFile: a whole file mapped read-only into memory. The system loads pages at first access; nothing is
// copied.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/named_ranges.h"

namespace trainctl::data {

/// Move-only owner of one mapping. Thread-safe after construction. If another process shortens the file while
/// it is mapped, an access ends this process with SIGBUS, whose handler names the file (named_address). So
/// replace token files by rename; never rewrite them in place.
class MappedFile {
 public:
  MappedFile() = default;
  /// Error(kData) if the file is missing, unreadable or not a regular file. An empty file gives an empty
  /// span.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Releases the pages that were accessed so far, so that they no longer count as memory of this process.
  /// The next access gets them from the page cache. Other threads may read meanwhile.
  void drop_pages() const;
  /// Error(kData) if the file was written to or shortened since it was opened: then what is read may be
  /// neither the old bytes nor the new. One that was replaced or removed stays mapped as it was. One system call.
  void require_unchanged() const;
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t modified_s = 0, modified_ns = 0;
  } identity_;  // when it was opened
  NamedRange range_;
};

}  // namespace trainctl::data
