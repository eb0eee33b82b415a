// What the parts of the fake CUDA runtime share; tests see emulated_gpu.h.
#pragma once
#include <cuda_runtime_api.h>

#include <mutex>
#include <string>

#include "test/support/emulated_gpu/emulated_gpu.h"

namespace trainctl::emulated_gpu {

// ---- devices.cpp: calls and their errors --------------------------------------------------------------------------------------------

/// What a call to `function` must return before it does anything: a failure on request, or the device's own. cudaSuccess: go on.
cudaError_t gate(const char* function);
/// Remembers an error for cudaGetLastError of this thread, and returns it.
cudaError_t remember(cudaError_t error);
/// One runtime function: gate, body, memory of the error.
template <typename Body>
cudaError_t api(const char* function, Body&& body) {
  cudaError_t error = gate(function);
  if (error == cudaSuccess) error = body();
  return remember(error);
}
int current_device();
int device_count();
/// cudaSuccess, or the failure that the device never recovers from.
cudaError_t sticky_error(int device);
/// The most dynamic shared memory that a block of the device may ask for.
int most_shared_bytes(int device);
/// Whether a rule strikes this launch: it counts one launch of `op`.
enum class Strike { none, fail, hang };
Strike strike_of(const std::string& op, cudaError_t* error);
void count_launch(const std::string& op);
void reset_devices();

// ---- memory.cpp ---------------------------------------------------------------------------------------------------------------------

enum class Place { host, pinned, device };
struct PlaceOf {
  Place place = Place::host;
  int device = -1;
  bool inside = true;   ///< of device memory: the whole range lies in one allocation
};
PlaceOf place_of(const void* p, size_t bytes);
/// Device memory can be touched by kernels while at least one Window on its device exists.
class Window {
 public:
  explicit Window(int device);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

 private:
  int device_;
};
void reset_memory();
std::string memory_leaks();
void count_copy(int device, bool pageable);
void count_memset(int device);
void count_kernel(int device);
/// Installs the handlers that explain a bad access; once a thread also a stack for them to run on.
void watch_signals();

// ---- streams.cpp --------------------------------------------------------------------------------------------------------------------

void reset_streams(const Options& options);
/// Puts a kernel on a stream, with the failure it was struck by.
cudaError_t enqueue_kernel(cudaStream_t stream, Work work, Strike strike, cudaError_t error);
std::string stream_leaks();
/// Waits for all work on the device. cudaSuccess or the device's failure.
cudaError_t synchronize_device(int device);

// ---- work.cpp -----------------------------------------------------------------------------------------------------------------------

void reset_launches();
/// For first_launches().
void note_kernel(int device, const std::string& kernel);
void note_exchange(int device);

}  // namespace trainctl::emulated_gpu
