// A whole file, read-only in memory. Pages come from the page cache when touched; nothing is copied.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace trainctl::data {

/// Move-only owner of one mapping. Thread-safe after construction. A mapped file that is shortened by somebody else
/// while in use ends the process with SIGBUS; token files are checked against their size when opened, and are to be
/// replaced by rename, never rewritten in place.
class MappedFile {
 public:
  MappedFile() = default;
  /// Error(kData) if the file is missing, unreadable or no regular file. An empty file gives an empty span.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Gives back the pages that were touched so far: they no longer count as this process's memory and come from the page cache when
  /// they are touched again. May be called while other threads read.
  void drop_pages() const;
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace trainctl::data
