// Which devices this machine has, and how a rank gets the one it works on.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace trainctl::kernels {

/// What a driver and its management library say about one GPU. Numbers that are not told are absent.
struct GpuFacts {
  int index = 0;
  std::string name, pci_bus_id, uuid, driver;
  int compute_major = 0, compute_minor = 0, multiprocessors = 0;
  size_t total_bytes = 0, free_bytes = 0;
  std::optional<double> temperature_c, power_w, power_limit_w, sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz;
  std::optional<long long> ecc_uncorrected, remapped_rows, last_xid;
};

/// Whether GPUs can be used here, and if not, why, in one sentence that says what to do.
struct CudaStatus {
  bool built = false;            ///< this program has the CUDA backend
  int devices = 0;               ///< usable GPUs
  int driver_version = 0, runtime_version = 0;   ///< 1000 * major + 10 * minor, 0: unknown
  bool driver_too_old = false;   ///< there is a driver, and it cannot serve this program
  std::string problem;           ///< empty when devices > 0
};
/// Cheap: starts no CUDA context. Never throws.
CudaStatus cuda_status();
/// Facts of GPU `index`; Error(kPreflight) when there is no such GPU. Where the management library does not
/// report its free memory, CUDA does, by a context that takes hundreds of MiB of the GPU until this process
/// ends: only if `may_make_context`.
GpuFacts gpu_facts(int index, bool may_make_context = true);

/// What changes while a GPU works, as its management library reports it. Values that it does not report are nullopt.
struct GpuReadings {
  std::optional<double> temperature_c, power_w, sm_clock_mhz;
};
/// Reads them of GPU `index`, again and again, from any one thread: what the query needs is looked up once, here, and a call touches no CUDA
/// context. A call takes milliseconds.
std::function<GpuReadings()> open_gpu_readings(int index);

struct CudaOptions {
  int device = 0;                ///< index of the GPU
  bool tf32 = false;             ///< f32 products by TF32 tensor cores
  /// Bias gradients by an epilogue of the weight gradient's product (cuBLASLt's BGRADB) instead of a second reading of dy. Such products
  /// cannot be split over their rows, and at some shapes the library is slower by far: bench_cuda_kernels times both.
  bool bias_gradients_by_product = false;
  bool check_each_op = false;    ///< wait after each op, so that an asynchronous failure names its op (slow)
};
/// Error(kPreflight) in one sentence: no driver, no such GPU, an unsupported architecture, cuBLASLt not found (and where it was
/// looked for).
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);
/// `numerics()` of the backend of GPU `index`, without making one: starts no CUDA context. Error(kPreflight) as above.
std::string cuda_numerics(int index);

/// Whether attention runs on a CUDA device's tensor cores; else by plain f32 loops, many times slower. Known without a GPU.
bool attention_on_tensor_cores(int64_t head_dim, DType activation);

/// Device memory that ops on these shapes take beside their arguments on a CUDA device: what reserve_scratch takes there. Pure; known
/// without a GPU.
size_t cuda_scratch_bytes(const ScratchShape& shape);

/// And what its library of products takes.
size_t cuda_workspace_bytes();

/// The same of the CPU backend with so many threads: what its ops keep for themselves.
size_t cpu_scratch_bytes(const ScratchShape& shape, int threads);

/// Dense bf16 (f32: TF32 aside, plain) peak of a GPU by its name as the driver tells it, in FLOP/s; nothing for an unknown GPU, which is
/// then measured, never guessed. Sources: kernels/gpu_peaks.cpp.
std::optional<double> gpu_peak_flops_per_s(const std::string& name, DType dtype);

}  // namespace trainctl::kernels
