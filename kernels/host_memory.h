// Memory and streams of the backends that compute on the CPU.
#pragma once
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "kernels/backend.h"

namespace trainctl::kernels {

/// A CPU stream. Every op runs at once, so there is never pending work.
class HostStream final : public Stream {
 public:
  void synchronize() override {}
  void record(Event&) override {}
  void wait(Event&) override {}
};
class HostEvent final : public Event {
 public:
  bool reached() override { return true; }
  void synchronize() override {}
};

/// Zero-filled host memory, 64-byte aligned. The system provides zero pages on first use, so unused memory
/// costs nothing. Errors: Error(kHardware) if there is not enough memory.
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

/// The common part of all backends that compute on the CPU.
class HostDevice : public Backend {
 public:
  bool is_host() const override { return true; }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<HostEvent>(); }
  std::unique_ptr<Buffer> allocate(size_t bytes) override;
  std::unique_ptr<Buffer> allocate_host(size_t bytes) override { return std::make_unique<HostBuffer>(bytes); }
  void copy_to_device(Stream&, void* device, const void* host, size_t bytes) override { std::memmove(device, host, bytes); }
  void copy_to_host(Stream&, void* host, const void* device, size_t bytes) override { std::memmove(host, device, bytes); }
  void copy_on_device(Stream&, void* dst, const void* src, size_t bytes) override { std::memmove(dst, src, bytes); }
  size_t allocated_bytes() const override { return count_->now; }
  size_t peak_allocated_bytes() const override { return count_->most; }

 private:
  struct Count {
    std::atomic<size_t> now{0}, most{0};
  };
  class CountedBuffer;
  std::shared_ptr<Count> count_ = std::make_shared<Count>();   // outlived by no buffer
};

}  // namespace trainctl::kernels
