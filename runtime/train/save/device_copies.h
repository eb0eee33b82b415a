// Copies a rank's state between its device and its files, piece by piece, through a bounded amount of pinned
// host memory. If the device is the host, files are read into and written from the state directly, without
// additional memory.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "ckpt/checkpoint.h"
#include "kernels/backend.h"
#include "parallel/sharded_params.h"
#include "runtime/plan/rank_sizes.h"

namespace trainctl {

/// Pinned memory in two halves: the device copies one half while the host works on the other. Allocated once;
/// one thread.
class StateStaging {
 public:
  /// bytes: size of both halves together; 0 if the device is the host.
  StateStaging(kernels::Backend& backend, kernels::Stream& stream, size_t bytes);
  ~StateStaging();
  StateStaging(const StateStaging&) = delete;
  StateStaging& operator=(const StateStaging&) = delete;

  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return stream_; }
  size_t half_bytes() const { return half_bytes_; }
  /// Waits until the last copy of half `i` is done and returns the half.
  std::byte* half(int i);
  /// Call it when the copies of half `i` have been enqueued.
  void copies_given(int i) { stream_.record(*halves_[size_t(i)].copied); }

 private:
  struct Half {
    std::unique_ptr<kernels::Buffer> memory;
    std::unique_ptr<kernels::Event> copied;
  };
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  size_t half_bytes_;
  std::array<Half, 2> halves_;
};

/// Provides host memory that the caller fills, and copies it to the device.
class Upload {
 public:
  explicit Upload(StateStaging& staging) : staging_(staging) {}
  /// The largest room() in bytes.
  size_t most() const;
  /// Whether so many bytes fit before the next flush.
  bool fits(size_t bytes) const;
  /// Host memory for `bytes` (at most most()) that flush() copies to `device`. Valid until the next flush.
  /// Flushes first if they do not fit.
  void* room(void* device, size_t bytes);
  float* room(float* device, int64_t floats) {
    return static_cast<float*>(room(static_cast<void*>(device), size_t(floats) * sizeof(float)));
  }
  /// Enqueues the copies of all memory from room(). The caller has filled it.
  void flush();
  /// Flushes and waits for all copies.
  void finish();

 private:
  struct Copy {
    void* device;
    const void* host;
    size_t bytes;
  };
  StateStaging& staging_;
  std::vector<Copy> copies_;
  int half_ = 0;
  size_t used_ = 0;
};

/// Reads chunks of state from the device for write_shard. The device fills one half while the host hashes or
/// writes the other.
class DeviceChunks final : public ckpt::ChunkSource {
 public:
  /// params: whose state may be in a file.
  DeviceChunks(StateStaging& staging, const parallel::ShardedParams& params)
      : staging_(staging), params_(params) {}
  void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override;
  bool is_for_threads() const override { return staging_.backend().is_host(); }
  bool has_rows_apart() const override { return staging_.backend().is_host(); }

 private:
  void read_host(std::span<const std::span<const std::byte>> chunks, const Take& take) const;
  StateStaging& staging_;
  const parallel::ShardedParams& params_;
};

}  // namespace trainctl
