// How a block of CUDA threads runs on one CPU thread: each CUDA thread is a fiber that runs until it waits for others.
//
// A fiber leaves the CPU only at a barrier or a warp instruction that not all its partners have reached, and at its end. Which fiber
// goes on next is decided by the order of the launch (Order in emulated_gpu.h), so that a missing barrier gives wrong results under
// some order. A block runs in one CPU thread from beginning to end; several CPU threads may run blocks of different launches.
// Mistakes of a kernel (threads at different barriers, a deadlock, a lane outside its own mask) end the process with the name of the
// kernel, the block, the thread and the source line.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>

// The place of the CUDA thread that this CPU thread runs at the moment: CUDA's built-in variables.
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

namespace trainctl::emulated_gpu {

using Index3 = uint3;

constexpr int kLanes = 32;
using Site = std::source_location;

/// The dynamic shared memory of the block that this CPU thread runs.
extern constinit thread_local unsigned char* dynamic_shared_memory;

/// Waits until every thread of the block is here or has ended.
void block_barrier(const Site& site);
/// The same, and tells how many threads passed a true predicate.
int block_barrier_count(bool predicate, const Site& site);

/// What a warp instruction does once all its lanes are there: argument[l] is lane l's, null for lanes that do not take part.
using WarpFunction = void (*)(void* const* argument);
/// Waits until all lanes of `mask` that have not ended are at the same instruction; then `function` has run once for all of them.
void warp_instruction(unsigned mask, WarpFunction function, void* argument, const Site& site);
/// A warp instruction that all 32 lanes must reach alive (".aligned" in PTX).
void aligned_warp_instruction(WarpFunction function, void* argument, const Site& site);
/// The lane of the running thread: its linear index in the block mod 32.
int lane_index();

/// The running thread waits until another one says that `what` has happened.
void wait_for(const void* what, const Site& site);
void wake_those_who_wait_for(const void* what);

/// A copy into shared memory that is done at the last moment allowed. Until then the destination holds NaN patterns.
void late_copy(void* shared, const void* global, bool valid, const Site& site);
void late_copy_commit();
void late_copy_wait(int pending);

/// Ends the process: "emulated GPU: norm_forward, block (3, 0, 0), thread (17, 0, 0), norm.cu:81: <message>".
[[noreturn]] void kernel_failed(const std::string& message, const Site* site = nullptr);
/// Fails unless `p` is a multiple of 16.
void require_aligned16(const void* p, const char* what, const Site& site);

enum class OrderKind { forward, reverse, random };

struct Launch {
  std::string name;
  Index3 grid_size, block_size;
  size_t dynamic_shared_bytes = 0;
  std::function<void()> body;   ///< one CUDA thread
};
/// Runs all blocks of a launch, one after another, in this CPU thread. `seed` decides every order there is.
void run_launch(const Launch& launch, OrderKind order, uint64_t seed);

/// "kernel norm_forward, block (3, 0, 0), thread (17, 0, 0)" of what this CPU thread runs; "" outside a kernel. Allocates nothing: for
/// signal handlers.
void describe_place(char* text, size_t size);

/// Counts since the process began, for measurements.
struct ExecutionCounts {
  uint64_t threads = 0, switches = 0;
};
ExecutionCounts execution_counts();

/// The byte of never written memory: four of them are a NaN as f32, as bf16 and (eight) as f64, and a large negative integer.
constexpr unsigned char kGarbage = 0xff;

}  // namespace trainctl::emulated_gpu
