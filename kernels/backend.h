// Backend: what one device can do: memory, streams, copies, and the ops (ops.h). One object per rank. Every op
// is enqueued on a stream; a CPU stream runs it at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace trainctl::kernels {

/// A position in a stream. The event is reached when all work enqueued before the last Stream::record is
/// done. An event that was never recorded is reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool reached() = 0;        ///< never blocks
  virtual void synchronize() = 0;    ///< blocks the host until the event is reached
};

/// An in-order queue of work on a device. Streams of one device run concurrently unless an event orders them.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Blocks the host until all work enqueued so far is done. Error(kHardware) if some of it failed.
  virtual void synchronize() = 0;
  /// Moves the event to the end of the work enqueued so far.
  virtual void record(Event& event) = 0;
  /// Work enqueued from now on starts after the event, as recorded now, is reached.
  virtual void wait(Event& event) = 0;
};

/// Memory with one owner; freed by the destructor. Zero-filled when allocated.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual size_t bytes() const = 0;
};

/// The largest shapes of a run's ops; they determine the scratch memory of the ops. 0: the run does not use
/// the op.
struct ScratchShape {
  int64_t rows = 0;            ///< M
  int64_t widest = 0;  ///< largest number of columns of a norm, of all its groups, or of a product's bias
  AttentionShape attention;
  int64_t embedding_rows = 0, embedding_cols = 0;   ///< of the local table
  int64_t optimizer_elements = 0, optimizer_boxes = 0;
  /// Lists of boxes for SumSquares besides the one of the optimizer's boxes.
  std::vector<BoxListShape> square_sums = {};
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  ///< "cpu", "cuda", "reference", ...
  /// All that affects the bits of ops besides their arguments: kind of device, architecture or instruction
  /// set, versions of the libraries for products. "cpu v4 kernels 2 oneDNN 2.6.3 avx512_core_amx",
  /// "cuda sm_90 132 SMs cuBLASLt 13.1.0". Backends with equal texts give equal bits.
  virtual std::string numerics() const = 0;
  /// True if the host may read and write this device's memory and every op is done when its call returns.
  virtual bool is_host() const { return false; }
  /// False for the tally twin, whose memory has no contents, so that callers need not fill it.
  virtual bool computes() const { return true; }
  virtual std::unique_ptr<Stream> create_stream() = 0;
  /// A stream whose waiting work comes before that of streams of lower priority, where the device can choose.
  ///   priority   0 is that of create_stream(); a device may know fewer steps
  virtual std::unique_ptr<Stream> create_stream_before(int priority) {
    return (void)priority, create_stream();
  }
  virtual std::unique_ptr<Event> create_event() = 0;
  /// Device memory. Error(kHardware) if there is not enough.
  virtual std::unique_ptr<Buffer> allocate(size_t bytes) = 0;
  /// Host memory that the device can copy from and to directly (pinned).
  virtual std::unique_ptr<Buffer> allocate_host(size_t bytes) = 0;
  // Copies are enqueued. The host memory must stay valid, and the source unchanged, until they are done. A
  // copy is asynchronous to the host only if the host memory is from allocate_host.
  virtual void copy_to_device(Stream&, void* device, const void* host, size_t bytes) = 0;
  virtual void copy_to_host(Stream&, void* host, const void* device, size_t bytes) = 0;
  virtual void copy_on_device(Stream&, void* dst, const void* src, size_t bytes) = 0;
  /// Names the work enqueued until the matching end_range, for a profiler of the device. Does nothing on
  /// devices without one.
  virtual void begin_range(const char* name) { (void)name; }
  virtual void end_range() {}
  /// Allocates the scratch memory for ops of these shapes. Without this call the ops allocate it when first
  /// called.
  virtual void reserve_scratch(const ScratchShape&) {}
  /// Device memory allocated through this backend now, and the largest amount so far, in bytes.
  virtual size_t allocated_bytes() const = 0;
  virtual size_t peak_allocated_bytes() const = 0;

  /// An empty PackedWeight for a [N, K] weight, to use with activations of `dtype`.
  virtual std::unique_ptr<PackedWeight> make_packed(int64_t n, int64_t k, DType dtype) = 0;
  /// The dtype in which products of `activation` use a bias without conversion. A bias in f32 also works, but
  /// a device may convert it in each call.
  virtual DType bias_dtype(DType activation) const { return (void)activation, DType::f32; }
  /// Checks the op's arguments and enqueues it. Lists of boxes or inputs are read before the call returns.
  virtual void run(Stream&, const Op& op) = 0;
};

/// Names the work that is enqueued while this object lives (Backend::begin_range):
/// "F mb 3 virtual stage 0".
class Range {
 public:
  Range(Backend& backend, const char* what, int64_t micro_batch, int virtual_stage);
  ~Range() { backend_.end_range(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Backend& backend_;
};

/// The reference backend: single-threaded loops that compute the formulas with double accumulation. Slow.
std::unique_ptr<Backend> make_reference_backend();

/// The backend for CPU cores: products by oneDNN, other ops by our vectorised kernels, on `threads` threads
/// (the caller is one of them). Results do not depend on `threads`. Error(kPreflight) if the CPU is too old.
std::unique_ptr<Backend> make_cpu_backend(int threads);
/// numerics() of that backend, without making one.
std::string cpu_numerics();

/// Measures the peak for MFU: FLOP/s of `dtype` matrix products with packed weights, the best of several
/// tries within about 0.2 s. The products are 1024 x 1024 x 1024 on a CPU and 8192 x 8192 x 8192 with random
/// numbers on other devices.
double measure_matmul_flops_per_s(Backend& backend, DType dtype);

}  // namespace trainctl::kernels
