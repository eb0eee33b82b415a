// The way of a rank's state between its device and its files: through a bounded amount of pinned host memory, piece by piece. Where the
// device is the host, files are read into and written from the state itself and no memory is taken.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "ckpt/checkpoint.h"
#include "kernels/backend.h"
#include "runtime/plan/rank_sizes.h"

namespace trainctl {

/// Pinned memory in two halves: one is being copied while the host works on the other. Taken once; used by one thread.
class StateStaging {
 public:
  /// bytes: of both halves together; 0 where the device is the host.
  StateStaging(kernels::Backend& backend, kernels::Stream& stream, size_t bytes);
  ~StateStaging();
  StateStaging(const StateStaging&) = delete;
  StateStaging& operator=(const StateStaging&) = delete;

  kernels::Backend& backend() { return backend_; }
  kernels::Stream& stream() { return stream_; }
  size_t half_bytes() const { return half_bytes_; }
  /// Half `i` once its last copy is done.
  std::byte* half(int i);
  /// Its copies have been given to the stream.
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

/// Host memory that the caller fills and that then goes to the device.
class Upload {
 public:
  explicit Upload(StateStaging& staging) : staging_(staging) {}
  /// The most floats of one room.
  int64_t most() const;
  /// Whether there is room for `count` floats before the next flush.
  bool fits(int64_t count) const;
  /// Room for `count` floats (at most most()) that are to be at `device`, valid until the next flush. Flushes where it does not fit.
  float* room(float* device, int64_t count);
  /// The rooms given so far are filled: their copies begin.
  void flush();
  /// flush, then waits for all copies.
  void finish();

 private:
  struct Copy {
    float* device;
    const float* host;
    size_t bytes;
  };
  StateStaging& staging_;
  std::vector<Copy> copies_;
  int half_ = 0;
  size_t used_ = 0;
};

/// Chunks of state on the device, for write_shard: while the host hashes or writes one half the other is being filled.
class DeviceChunks final : public ckpt::ChunkSource {
 public:
  explicit DeviceChunks(StateStaging& staging) : staging_(staging) {}
  void read(std::span<const std::span<const std::byte>> chunks, const Take& take) override;

 private:
  StateStaging& staging_;
};

}  // namespace trainctl
