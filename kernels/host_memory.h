// Memory and streams of the backends whose device is the machine itself.
#pragma once
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/backend.h"

namespace trainctl::kernels {

/// A CPU stream runs every op at once, so nothing is ever outstanding.
class HostStream final : public Stream {
 public:
  void synchronize() override {}
};

/// Zero-filled host memory, 64-byte aligned. Zero pages come from the system, so untouched memory costs nothing.
/// Errors: Error(kHardware) when the memory is not there.
class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(size_t bytes);
  ~HostBuffer() override;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  void* data() override { return data_; }
  const void* data() const { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace trainctl::kernels
