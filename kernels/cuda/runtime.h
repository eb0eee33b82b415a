// Owned things of the CUDA runtime: one GPU, its memory, streams and events. Handles are given back by destructors, which never throw;
// everything that fails throws Error(kHardware) with the op, the call, the GPU and CUDA's own words.
//
// Thread rule: a stream is used by one thread at a time; everything else may be used by any thread. Each entry makes its GPU the
// calling thread's current one, so a process may have one backend per thread, each on its own GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/backend.h"

namespace trainctl::kernels::cuda {

/// Throws Error(kHardware): "norm_forward: cudaLaunchKernelEx on GPU 0: cudaErrorIllegalAddress: <CUDA's words>; <what to do>". When the
/// failure is of work given earlier, it names the ops that were under way on the stream.
[[noreturn]] void throw_cuda_error(const char* op, const char* call, cudaError_t error);
inline void check_cuda(cudaError_t error, const char* op, const char* call) {
  if (error != cudaSuccess) throw_cuda_error(op, call, error);
}

class CudaStream;

/// One GPU in this process, shared by everything that lives on it.
class Device {
 public:
  Device(int index, bool check_each_op);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Makes this GPU the calling thread's. Cheap when it already is.
  void use() const;
  int index() const { return index_; }
  int multiprocessors() const { return multiprocessors_; }
  size_t most_shared_bytes() const { return size_t(most_shared_bytes_); }   ///< of shared memory that a block may ask for
  bool checks_each_op() const { return check_each_op_; }

  /// Zero-filled device memory; the zeros are there on return.
  void* take(size_t bytes);
  void give_back(void* data, size_t bytes) noexcept;
  size_t allocated_bytes() const { return allocated_; }
  size_t peak_allocated_bytes() const { return peak_; }

  /// Memory that several streams' ops use in turn (scratch, the products' workspace): work given to `user` from now on starts after
  /// what the last user was given. Nothing happens while the user stays the same.
  void hand_shared_memory_to(CudaStream& user);
  /// `stream` ends: what it was given still comes first.
  void forget(CudaStream& stream) noexcept;

 private:
  const int index_;
  const bool check_each_op_;
  int multiprocessors_ = 1, most_shared_bytes_ = 48 << 10;
  cudaStream_t fill_stream_ = nullptr;      // zeros new memory
  cudaEvent_t shared_memory_free_ = nullptr;
  CudaStream* shared_memory_user_ = nullptr;
  std::mutex shared_memory_;
  std::atomic<size_t> allocated_{0}, peak_{0};
};

/// Device memory.
class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(std::shared_ptr<Device> device, size_t bytes);
  ~CudaBuffer() override;
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
};

/// Zero-filled, pinned host memory, known to every GPU of the process.
class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(std::shared_ptr<Device> device, size_t bytes);
  ~PinnedBuffer() override;
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  void* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
};

/// A mark without a clock.
class CudaEvent final : public Event {
 public:
  explicit CudaEvent(std::shared_ptr<Device> device);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  bool reached() override;
  void synchronize() override;
  cudaEvent_t handle() const { return handle_; }

 private:
  std::shared_ptr<Device> device_;
  cudaEvent_t handle_ = nullptr;
};

/// A stream that never waits for the default stream. It remembers which ops it was given since it was last seen well, for errors that
/// the device reports only later.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<Device> device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  void synchronize() override;
  void record(Event& event) override;
  void wait(Event& event) override;
  cudaStream_t handle() const { return handle_; }

  /// Runs body(), which gives the work of `op` to this stream; with Device::checks_each_op, waits for that work, so that its failure
  /// names `op`. `op` must be a literal.
  template <typename Body>
  void give(const char* op, Body body) {
    const Giving giving(*this, op);
    body();
    if (device_->checks_each_op()) check_op(op);
  }
  /// "norm_forward, linear_forward (3 times), add": the newest ops since the stream was last seen well.
  std::string ops_under_way() const;

 private:
  /// The stream that this thread gives an op to: failures of launches inside name its ops.
  struct Giving {
    Giving(CudaStream& stream, const char* op);
    ~Giving();
    CudaStream* outer;   ///< an op that waits for its own uploads gives and synchronizes
  };
  void check_op(const char* op);

  static constexpr size_t kRemembered = 32;
  std::shared_ptr<Device> device_;
  cudaStream_t handle_ = nullptr;
  std::array<const char*, kRemembered> given_{};   // a ring
  size_t given_count_ = 0;                         // since last seen well
};

}  // namespace trainctl::kernels::cuda
