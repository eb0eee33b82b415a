// Owners of CUDA runtime objects: one GPU, its memory, streams and events. Destructors release the handles
// and never throw. Failures throw Error(kHardware) with the op, the call, the GPU and CUDA's message.
//
// Thread rule: one thread at a time uses a stream; any thread may use the other objects. Each entry point
// makes its GPU the current one of the calling thread, so a process may have one backend per thread, each on
// its own GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/backend.h"

namespace trainctl::kernels::cuda {

/// Throws Error(kHardware): "norm_forward: cudaLaunchKernelEx on GPU 0: cudaErrorIllegalAddress: <CUDA's
/// message>; <what to do>". If work that was enqueued earlier failed, the message names the ops enqueued
/// since the last successful synchronize.
[[noreturn]] void throw_cuda_error(const char* op, const char* call, cudaError_t error);
inline void check_cuda(cudaError_t error, const char* op, const char* call) {
  if (error != cudaSuccess) throw_cuda_error(op, call, error);
}

class CudaStream;

/// One GPU in this process, shared by all objects on it.
class Device {
 public:
  Device(int index, bool check_each_op);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Makes this GPU the current one of the calling thread. Cheap if it is already.
  void use() const;
  int index() const { return index_; }
  int multiprocessors() const { return multiprocessors_; }
  int compute() const { return compute_; }                                  ///< 90: compute capability 9.0
  size_t most_shared_bytes() const { return size_t(most_shared_bytes_); }   ///< most shared memory of a block
  bool checks_each_op() const { return check_each_op_; }

  /// Allocates device memory, which is zero-filled on return.
  void* take(size_t bytes);
  void give_back(void* data, size_t bytes) noexcept;
  size_t allocated_bytes() const { return allocated_; }
  size_t peak_allocated_bytes() const { return peak_; }

  /// Passes the memory that ops of several streams share (scratch, the products' workspace) to `user`: work
  /// enqueued on `user` from now on starts after the work that the previous user has enqueued. Does nothing
  /// if the user stays the same.
  void hand_shared_memory_to(CudaStream& user);
  /// Call it before `stream` is destroyed. The next user still waits for the work of `stream`.
  void forget(CudaStream& stream) noexcept;

 private:
  const int index_;
  const bool check_each_op_;
  int multiprocessors_ = 1, compute_ = 0, most_shared_bytes_ = 48 << 10;
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

/// Zero-filled, pinned host memory that every GPU of the process can access.
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

/// An event without timing.
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

/// A stream that does not synchronize with the default stream. It keeps the names of the ops enqueued since
/// the last successful synchronize, for errors that the device reports late.
class CudaStream final : public Stream {
 public:
  /// priority: see Backend::create_stream_before
  CudaStream(std::shared_ptr<Device> device, int priority);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  void synchronize() override;
  void record(Event& event) override;
  void wait(Event& event) override;
  cudaStream_t handle() const { return handle_; }

  /// Calls body(), which enqueues the work of `op` on this stream. With Device::checks_each_op, waits for
  /// that work, so that its failure names `op`. `op` must be a string literal.
  template <typename Body>
  void give(const char* op, Body body) {
    const Giving giving(*this, op);
    body();
    if (device_->checks_each_op()) check_op(op);
  }
  /// The newest ops enqueued since the last successful synchronize: "norm_forward, linear_forward (3 times),
  /// add".
  std::string ops_under_way() const;

 private:
  /// Sets the stream on which this thread enqueues an op. Failed launches then name the ops of that stream.
  struct Giving {
    Giving(CudaStream& stream, const char* op);
    ~Giving();
    CudaStream* outer;   ///< the previous stream; an op may enqueue uploads and synchronize inside another op
  };
  void check_op(const char* op);

  static constexpr size_t kRemembered = 32;
  std::shared_ptr<Device> device_;
  cudaStream_t handle_ = nullptr;
  std::array<const char*, kRemembered> given_{};   // a ring of op names
  size_t given_count_ = 0;                         // ops since the last successful synchronize
};

}  // namespace trainctl::kernels::cuda
