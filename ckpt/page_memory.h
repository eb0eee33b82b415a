// PageMemory: whole pages of this process, taken from the system and given back to it.
//
// Not of the heap: once a block of some megabytes was freed, glibc takes the next ones from its heaps, where
// what is allocated above them keeps their pages for the process (40 MiB were seen after a thousand saves).
// Where the system has huge pages, it is of them: a disk then takes a large block in few pieces, and a first
// touch costs little.
#pragma once
#include <cstddef>
#include <utility>

namespace trainctl::ckpt {

class PageMemory {
 public:
  static constexpr size_t kPage = 4096;
  PageMemory() = default;
  /// Zero bytes, rounded up to whole pages. Throws std::bad_alloc.
  explicit PageMemory(size_t bytes);
  ~PageMemory();
  PageMemory(PageMemory&& from) noexcept
      : data_(std::exchange(from.data_, nullptr)), bytes_(std::exchange(from.bytes_, 0)) {}
  PageMemory& operator=(PageMemory&& from) noexcept {
    std::swap(data_, from.data_);
    std::swap(bytes_, from.bytes_);
    return *this;
  }
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace trainctl::ckpt
