// Twin of the CUDA header of the same name for a C++ compiler: qualifiers, the built-in variables and the intrinsics that kernels use,
// with the meaning of the CUDA C++ Programming Guide. Threads are the fibers of execution.h.
#pragma once
#include <cuda_runtime_api.h>

#include <bit>
#include <math.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "test/support/emulated_gpu/execution.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
// A block runs in one CPU thread from beginning to end, so one copy a CPU thread is one copy a block.
#define __shared__ static thread_local

constexpr int warpSize = 32;

namespace trainctl::emulated_gpu {

/// Enqueues a launch. What real CUDA refuses is refused: sizes beyond the device's, the null stream (no API here has a default stream),
/// more than 48 KiB of dynamic shared memory that nobody asked for.
cudaError_t launch_kernel(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                          std::function<void()> body);

template <typename... Parameters>
std::function<void()> bound(void (*kernel)(Parameters...), Parameters... arguments) {
  return [kernel, values = std::tuple<std::remove_cvref_t<Parameters>...>(arguments...)] { std::apply(kernel, values); };
}

/// Lane `source(lane)`'s value, for every lane; the value of a lane that does not take part is garbage, as CUDA leaves it undefined.
enum class Shuffle { index, up, down, butterfly };
struct ShuffleArgument {
  unsigned long long value, result;
  int operand, width;
};
template <Shuffle kKind>
void shuffle_lanes(void* const* argument) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!argument[lane]) continue;
    auto& mine = *static_cast<ShuffleArgument*>(argument[lane]);
    const int begin = lane & ~(mine.width - 1), last = begin | (mine.width - 1);
    int from = lane;
    if constexpr (kKind == Shuffle::index) from = begin | (mine.operand & (mine.width - 1));
    if constexpr (kKind == Shuffle::up) from = lane - mine.operand >= begin ? lane - mine.operand : lane;
    if constexpr (kKind == Shuffle::down) from = lane + mine.operand <= last ? lane + mine.operand : lane;
    if constexpr (kKind == Shuffle::butterfly) from = (lane ^ mine.operand) <= last ? lane ^ mine.operand : lane;
    if (from < 0 || from >= kLanes) from = lane;
    mine.result = argument[from] ? static_cast<const ShuffleArgument*>(argument[from])->value : ~0ull;
  }
}
template <Shuffle kKind, typename T>
T shuffle(unsigned mask, T value, int operand, int width, const Site& site) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  if (width < 1 || width > kLanes || (width & (width - 1)) != 0) kernel_failed("the width of a shuffle is a power of two up to 32", &site);
  ShuffleArgument argument{0, 0, operand, width};
  std::memcpy(&argument.value, &value, sizeof(T));
  warp_instruction(mask, shuffle_lanes<kKind>, &argument, site);
  std::memcpy(&value, &argument.result, sizeof(T));
  return value;
}

struct VoteArgument {
  bool predicate;
  unsigned ballot;
};
inline void vote_lanes(void* const* argument) {
  unsigned ballot = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    if (argument[lane] && static_cast<VoteArgument*>(argument[lane])->predicate) ballot |= 1u << lane;
  for (int lane = 0; lane < kLanes; ++lane)
    if (argument[lane]) static_cast<VoteArgument*>(argument[lane])->ballot = ballot;
}
inline void only_meet(void* const*) {}

}  // namespace trainctl::emulated_gpu

// ---- barriers and warp instructions -------------------------------------------------------------------------------------------------
inline void __syncthreads(std::source_location site = std::source_location::current()) { trainctl::emulated_gpu::block_barrier(site); }
inline int __syncthreads_count(int predicate, std::source_location site = std::source_location::current()) {
  return trainctl::emulated_gpu::block_barrier_count(predicate != 0, site);
}
inline int __syncthreads_or(int predicate, std::source_location site = std::source_location::current()) {
  return trainctl::emulated_gpu::block_barrier_count(predicate != 0, site) != 0;
}
inline int __syncthreads_and(int predicate, std::source_location site = std::source_location::current()) {
  return trainctl::emulated_gpu::block_barrier_count(predicate == 0, site) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, std::source_location site = std::source_location::current()) {
  trainctl::emulated_gpu::warp_instruction(mask, trainctl::emulated_gpu::only_meet, nullptr, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, std::source_location site = std::source_location::current()) {
  trainctl::emulated_gpu::VoteArgument argument{predicate != 0, 0};
  trainctl::emulated_gpu::warp_instruction(mask, trainctl::emulated_gpu::vote_lanes, &argument, site);
  return argument.ballot;
}
inline int __any_sync(unsigned mask, int predicate, std::source_location site = std::source_location::current()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, std::source_location site = std::source_location::current()) {
  return __ballot_sync(mask, predicate == 0, site) == 0;
}
#define EMULATED_SHUFFLES(T)                                                                                                      \
  inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32,                                                          \
                       std::source_location site = std::source_location::current()) {                                             \
    return trainctl::emulated_gpu::shuffle<trainctl::emulated_gpu::Shuffle::index>(mask, value, lane, width, site);               \
  }                                                                                                                               \
  inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,                                                 \
                          std::source_location site = std::source_location::current()) {                                          \
    return trainctl::emulated_gpu::shuffle<trainctl::emulated_gpu::Shuffle::up>(mask, value, int(delta), width, site);            \
  }                                                                                                                               \
  inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,                                               \
                            std::source_location site = std::source_location::current()) {                                        \
    return trainctl::emulated_gpu::shuffle<trainctl::emulated_gpu::Shuffle::down>(mask, value, int(delta), width, site);          \
  }                                                                                                                               \
  inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,                                                 \
                           std::source_location site = std::source_location::current()) {                                         \
    return trainctl::emulated_gpu::shuffle<trainctl::emulated_gpu::Shuffle::butterfly>(mask, value, lane_mask, width, site);      \
  }
EMULATED_SHUFFLES(int)
EMULATED_SHUFFLES(unsigned)
EMULATED_SHUFFLES(long)
EMULATED_SHUFFLES(unsigned long)
EMULATED_SHUFFLES(long long)
EMULATED_SHUFFLES(unsigned long long)
EMULATED_SHUFFLES(float)
EMULATED_SHUFFLES(double)
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}

// ---- memory -------------------------------------------------------------------------------------------------------------------------
template <typename T> inline T __ldg(const T* p) { return *p; }
template <typename T> inline T __ldca(const T* p) { return *p; }
template <typename T> inline T __ldcg(const T* p) { return *p; }
template <typename T> inline T __ldcs(const T* p) { return *p; }
template <typename T> inline T __ldlu(const T* p) { return *p; }
template <typename T> inline T __ldcv(const T* p) { return *p; }
template <typename T> inline void __stwb(T* p, T value) { *p = value; }
template <typename T> inline void __stcg(T* p, T value) { *p = value; }
template <typename T> inline void __stcs(T* p, T value) { *p = value; }
template <typename T> inline void __stwt(T* p, T value) { *p = value; }
#define EMULATED_ATOMICS(T)                                                                     \
  inline T atomicAdd(T* p, T value) { return __atomic_fetch_add(p, value, __ATOMIC_RELAXED); }  \
  inline T atomicSub(T* p, T value) { return __atomic_fetch_sub(p, value, __ATOMIC_RELAXED); }  \
  inline T atomicExch(T* p, T value) { return __atomic_exchange_n(p, value, __ATOMIC_RELAXED); } \
  inline T atomicMax(T* p, T value) {                                                           \
    const T old = *p;                                                                           \
    if (value > old) *p = value;                                                                \
    return old;                                                                                 \
  }                                                                                             \
  inline T atomicMin(T* p, T value) {                                                           \
    const T old = *p;                                                                           \
    if (value < old) *p = value;                                                                \
    return old;                                                                                 \
  }                                                                                             \
  inline T atomicCAS(T* p, T expected, T value) {                                               \
    const T old = *p;                                                                           \
    if (old == expected) *p = value;                                                            \
    return old;                                                                                 \
  }
EMULATED_ATOMICS(int)
EMULATED_ATOMICS(unsigned)
EMULATED_ATOMICS(unsigned long long)

// ---- numbers ------------------------------------------------------------------------------------------------------------------------
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline int __ffsll(long long x) { return x ? std::countr_zero(static_cast<unsigned long long>(x)) + 1 : 0; }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
  return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<__uint128_t>(a) * b) >> 64);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= unsigned(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  return r;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline float __double2float_rn(double x) { return float(x); }
// One rounding each; compiled without contraction, the plain operators are just that.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return float(1.0 / std::sqrt(double(x))); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
// The approximate ones, at their best: a test's tolerance covers what the hardware leaves out.
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

#define EMULATED_MIN_MAX(T)                              \
  inline constexpr T min(T a, T b) { return b < a ? b : a; } \
  inline constexpr T max(T a, T b) { return a < b ? b : a; }
EMULATED_MIN_MAX(int)
EMULATED_MIN_MAX(unsigned)
EMULATED_MIN_MAX(long)
EMULATED_MIN_MAX(unsigned long)
EMULATED_MIN_MAX(long long)
EMULATED_MIN_MAX(unsigned long long)
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }

// ---- the C++ forms of the runtime's functions ---------------------------------------------------------------------------------------
template <typename T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
template <typename T>
cudaError_t cudaMallocHost(T** p, size_t bytes, unsigned flags = 0) {
  return cudaMallocHost(reinterpret_cast<void**>(p), bytes, flags);
}
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  return trainctl::emulated_gpu::launch_kernel("a kernel", reinterpret_cast<const void*>(kernel), config->gridDim, config->blockDim,
                                               config->dynamicSmemBytes, config->stream,
                                               trainctl::emulated_gpu::bound<Parameters...>(kernel, Parameters(arguments)...));
}
