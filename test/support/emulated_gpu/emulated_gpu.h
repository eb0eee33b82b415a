// The emulated GPU as a test sees it: which devices there are, in which order work runs, and what fails.
//
// The fake CUDA runtime keeps streams as queues. Work on them runs in whichever thread synchronizes, queries or frees, as late or as
// oddly as CUDA permits, so that a forgotten event or a buffer given up too early gives wrong data here, where it can be repeated.
// Device memory is out of reach of host code: touching it ends the process with a sentence that names the device. So does a kernel that
// leaves its allocation, and a wait longer than `wait_limit_ms`.
//
// All functions may be called from any thread. Ranks are threads, each on a device of its own or several on one.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "test/support/emulated_gpu/execution.h"

namespace trainctl::emulated_gpu {

/// When work on streams runs.
enum class StreamMode {
  eager,    ///< at once, in the order of the calls
  lazy,     ///< only what an awaited thing depends on, as late as possible
  random,   ///< any stream whose first work may run, chosen by the seed; sometimes early
};

struct DeviceOptions {
  std::string name = "Emulated H100";
  size_t memory_bytes = size_t{1} << 30;
  int multiprocessors = 3;
  int major = 9, minor = 0;
};

struct Options {
  OrderKind thread_order = OrderKind::forward;   ///< of threads, warps and blocks between barriers
  StreamMode stream_mode = StreamMode::lazy;
  uint64_t seed = 1;                             ///< of both random orders
  std::vector<DeviceOptions> devices = {DeviceOptions{}};
  int64_t wait_limit_ms = 300'000;  ///< a longer wait on a stream ends the process and says for what
  int driver_version = 13000;
  /// Queues of a device, in which streams take turns: work is done in the order in which it was given to a
  /// queue, so that what may not run yet holds up all behind it, whatever their streams. Streams get queues
  /// in the order of their making, and so do those of NCCL. 0: each stream has its own.
  int queues = 0;
  int64_t queue_limit_ms = 30'000;  ///< when streams hold each other up for so long, see held_streams()
};

/// Options{} changed by the environment: EMULATED_GPU_ORDER = forward, reverse or random, EMULATED_GPU_STREAMS = eager, lazy or random,
/// EMULATED_GPU_SEED = a number; EMULATED_GPU_NAME = the name of the device; EMULATED_GPU_QUEUES = a number.
/// They hold until the first reset.
Options options_from_environment();

/// Begins anew: devices without streams, memory, failures and counts. What was alive is gone (leaks() told which); no thread may be
/// inside a CUDA call.
void reset(const Options& options);
void reset();   ///< with options_from_environment()
const Options& options();

/// What was created and not yet destroyed, one line each; empty when there is nothing.
std::string leaks();

// ---- failures on request ------------------------------------------------------------------------------------------------------------

/// The n-th call from now (1: the next) of a runtime function, in any thread, returns `error` and does nothing else.
void fail_call(const std::string& function, int n, cudaError_t error);
/// The n-th launch from now of the kernel (by the op's name; "": any) fails when it runs: from then on every call on that device, in
/// every thread, returns `error`, as after a real asynchronous failure.
void fail_kernel(const std::string& op, int n, cudaError_t error);
/// Sets the device into that state at once.
void fail_device(int device, cudaError_t error);
/// The n-th launch from now of the kernel never finishes, and nothing after it on its stream, until release_hung().
void hang_kernel(const std::string& op, int n);
void hang_stream(cudaStream_t stream);
void release_hung();

/// Streams that were held up by others of their queue when nothing moved any more, with the work that held
/// them; then the limit was lifted, so that the test could end. Empty: that did not happen.
std::vector<std::string> held_streams();

// ---- counts -------------------------------------------------------------------------------------------------------------------------

struct Counts {
  uint64_t kernels = 0, copies = 0, pageable_copies = 0, memsets = 0;   ///< that have run; pageable: to or from host memory not pinned
  uint64_t allocations = 0;                                             ///< of device memory, so far
  size_t allocated_bytes = 0, peak_allocated_bytes = 0;                 ///< device memory
};
Counts counts(int device);
struct StreamFacts {
  int number = 0;  ///< in the order of their making, from 1 on
  int device = 0;
  int priority = 0;    ///< CUDA's: what is smaller comes first
  int queue = 0;       ///< of the device's, if options().queues > 0
  uint64_t given = 0;  ///< pieces of work so far
};
/// Of the streams that are alive, and some that were.
std::vector<StreamFacts> stream_facts();
size_t pinned_bytes();
size_t peak_pinned_bytes();   ///< the most at any moment since reset
/// Launches of a kernel, by the op's name, enqueued since reset.
uint64_t launches_of(const std::string& op);
/// Kernels that a device came to run, each once, in the order of their first launches: ops by name and address, products by shape. And
/// how many of them there were at the device's first exchange that came behind a kernel (all, when there was none): what is loaded later
/// may wait for an exchange.
struct FirstLaunches {
  std::vector<std::string> kernels;
  size_t before_exchange = 0;
};
FirstLaunches first_launches(int device);

// ---- for the other fakes (NCCL, cuBLASLt) -------------------------------------------------------------------------------------------

struct Work {
  std::string name;                  ///< in messages
  std::function<void()> run;         ///< may call alias() and nothing of CUDA
  /// Whether it may run now; empty: always. Asked only while the work is the first of its stream, with the runtime's lock held, from any
  /// thread, again and again: it may note that the stream has come this far, and calls nothing of CUDA. While it says no the other
  /// streams go on.
  std::function<bool()> ready;
};
/// Puts work on a stream. cudaErrorInvalidResourceHandle for the null stream or one that does not exist.
cudaError_t enqueue(cudaStream_t stream, Work work);
/// The device of a live stream; -1 when there is no such stream.
int device_of(cudaStream_t stream);
int number_of(cudaStream_t stream);  ///< StreamFacts::number; 0: there is no such stream
/// A stream of a library, to which nothing is given, takes a place among the device's queues.
void take_queue(int device);

/// Where the host reaches [p, p + bytes): device memory through its second mapping, host memory where it is. Ends the process when the
/// range is device memory, but not inside one allocation.
void* alias(void* p, size_t bytes);
const void* alias(const void* p, size_t bytes);

}  // namespace trainctl::emulated_gpu
