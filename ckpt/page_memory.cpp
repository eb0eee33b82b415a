#include "ckpt/page_memory.h"

#include <sys/mman.h>

#include <new>

namespace trainctl::ckpt {

PageMemory::PageMemory(size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
  if (bytes_ == 0) return;
  void* const data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(data);
}

PageMemory::~PageMemory() {
  if (data_) ::munmap(data_, bytes_);
}

}  // namespace trainctl::ckpt
