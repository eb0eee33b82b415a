#include "ckpt/page_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace trainctl::ckpt {

namespace {

constexpr size_t kHugePage = size_t(2) << 20;

std::byte* map(size_t bytes) {
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    if (const std::new_handler handler = std::get_new_handler()) handler();  // as `new` does
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(data);
}

void unmap(std::byte* begin, std::byte* end) {
  if (begin != end) ::munmap(begin, size_t(end - begin));
}

}  // namespace

PageMemory::PageMemory(size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
  if (bytes_ == 0) return;
  if (bytes_ < kHugePage) {
    data_ = map(bytes_);
    return;
  }
  std::byte* const mapped = map(bytes_ + kHugePage);
  data_ = mapped + (kHugePage - uintptr_t(mapped) % kHugePage) % kHugePage;
  unmap(mapped, data_);
  unmap(data_ + bytes_, mapped + bytes_ + kHugePage);
  ::madvise(data_, bytes_, MADV_HUGEPAGE);  // a hint
}

PageMemory::~PageMemory() {
  if (data_) ::munmap(data_, bytes_);
}

}  // namespace trainctl::ckpt
