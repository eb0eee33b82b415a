// The GPUs of this machine, and the backend for one of them.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace trainctl::kernels {

/// Facts about one GPU from the driver and its management library. Values that these do not report are
/// nullopt, 0 or "".
struct GpuFacts {
  int index = 0;
  std::string name, pci_bus_id, uuid, driver;
  int compute_major = 0, compute_minor = 0, multiprocessors = 0;
  size_t total_bytes = 0, free_bytes = 0;
  std::optional<double> temperature_c, power_w, power_limit_w, sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz;
  std::optional<long long> ecc_uncorrected, remapped_rows, last_xid;
  std::optional<bool> remap_pending, remap_failed;  ///< rows that wait for a reset; rows without a spare
  std::optional<std::string> slowed_by;  ///< what holds its clock down that should not: "heat"; "": nothing
};

/// Whether this process can use GPUs.
struct CudaStatus {
  bool built = false;            ///< this program has the CUDA backend
  int devices = 0;               ///< usable GPUs
  int driver_version = 0, runtime_version = 0;   ///< 1000 * major + 10 * minor, 0: unknown
  bool driver_too_old = false;   ///< there is a driver, but it is too old for this program
  std::string problem;           ///< why no GPU can be used and what to do, one sentence; "" if devices > 0
};
/// Whether this program has the CUDA backend; calls nothing of CUDA.
bool has_cuda();
/// Cheap: creates no CUDA context. Never throws.
CudaStatus cuda_status();
/// The facts of GPU `index`. Error(kPreflight) if there is no such GPU. If the management library does not
/// report the free memory, the call asks CUDA, but only if `may_make_context`: that creates a context, which
/// takes hundreds of MiB of the GPU until this process ends.
GpuFacts gpu_facts(int index, bool may_make_context = true);

/// Values of a working GPU that change, from the management library. Values that it does not report are
/// nullopt.
struct GpuReadings {
  std::optional<double> temperature_c, power_w, sm_clock_mhz;
};
/// Returns a function that reads the values of GPU `index`. Call the function from one thread at a time. A
/// call takes milliseconds and uses no CUDA context; open_gpu_readings makes all preparations.
std::function<GpuReadings()> open_gpu_readings(int index);

struct CudaOptions {
  int device = 0;                ///< index of the GPU
  bool tf32 = false;             ///< compute f32 products on TF32 tensor cores
  /// Compute bias gradients in an epilogue of the weight gradient's product (cuBLASLt's BGRADB) instead of a
  /// second pass over dy. Such products cannot be split over their rows, and for some shapes the library is
  /// much slower; bench_cuda_kernels times both.
  bool bias_gradients_by_product = false;
  /// Wait after each op, so that the error of an asynchronous failure names its op (slow).
  bool check_each_op = false;
};
/// The backend for one GPU. Error(kPreflight), one sentence: no driver, no such GPU, an unsupported
/// architecture, or cuBLASLt not found (with the places that were searched).
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);
/// numerics() of the backend for GPU `index`, without making one and without a CUDA context.
/// Error(kPreflight) as above.
std::string cuda_numerics(int index);

/// Whether attention on a CUDA device uses tensor cores. Otherwise it uses plain f32 loops, which are many
/// times slower. Needs no GPU.
bool attention_on_tensor_cores(int64_t head_dim, DType activation);

/// The scratch memory of ops with these shapes on a CUDA device, in bytes; reserve_scratch allocates it.
/// Pure; needs no GPU.
size_t cuda_scratch_bytes(const ScratchShape& shape);

/// The workspace of cuBLASLt on a CUDA device, in bytes.
size_t cuda_workspace_bytes();

/// The scratch memory of the CPU backend with `threads` threads, in bytes.
size_t cpu_scratch_bytes(const ScratchShape& shape, int threads);

/// The dense peak of a GPU in FLOP/s, by the name that the driver reports: bf16 on tensor cores, f32 without
/// them, or with `tf32` rounded to it on them: half of bf16's. nullopt for a GPU that is not in the table;
/// then the peak must be measured. Sources: kernels/gpu_peaks.cpp.
std::optional<double> gpu_peak_flops_per_s(const std::string& name, DType dtype, bool tf32 = false);

}  // namespace trainctl::kernels
