// Twin of kernels/cuda/ptx.cuh: the same functions, each a warp instruction of the emulated GPU. The layouts are written here a second
// time from the PTX ISA's figures ("Matrix fragments for mma.m16n8k16", "ldmatrix"), so that either text checks the other.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace trainctl::emulated_gpu {

struct LdmatrixArgument {
  uint32_t* r;
  const void* row;
};
struct MmaArgument {
  float* d;
  const uint32_t* a;
  uint32_t b0, b1;
};
void ldmatrix_lanes(void* const* argument);
void ldmatrix_trans_lanes(void* const* argument);
void mma_bf16_lanes(void* const* argument);

}  // namespace trainctl::emulated_gpu

namespace trainctl::kernels::cuda {

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, emulated_gpu::Site site = emulated_gpu::Site::current()) {
  emulated_gpu::require_aligned16(row, "a row of ldmatrix", site);
  emulated_gpu::LdmatrixArgument argument{r, row};
  emulated_gpu::aligned_warp_instruction(emulated_gpu::ldmatrix_lanes, &argument, site);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, emulated_gpu::Site site = emulated_gpu::Site::current()) {
  emulated_gpu::require_aligned16(row, "a row of ldmatrix", site);
  emulated_gpu::LdmatrixArgument argument{r, row};
  emulated_gpu::aligned_warp_instruction(emulated_gpu::ldmatrix_trans_lanes, &argument, site);
}
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                     emulated_gpu::Site site = emulated_gpu::Site::current()) {
  emulated_gpu::MmaArgument argument{d, a, b0, b1};
  emulated_gpu::aligned_warp_instruction(emulated_gpu::mma_bf16_lanes, &argument, site);
}
inline uint32_t pack_bf16(float low, float high) {
  return uint32_t(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16 | __bfloat16_as_ushort(__float2bfloat16_rn(low));
}
inline void cp_async16(void* shared, const void* global, bool valid = true, emulated_gpu::Site site = emulated_gpu::Site::current()) {
  emulated_gpu::late_copy(shared, global, valid, site);
}
inline void cp_async_commit() { emulated_gpu::late_copy_commit(); }
template <int kPending>
inline void cp_async_wait() {
  emulated_gpu::late_copy_wait(kPending);
}
inline float fast_exp2(float x) {
  const float flushed = std::fabs(x) < 0x1p-126f ? 0.0f : x;
  const float y = std::exp2(flushed);
  return y < 0x1p-126f ? 0.0f : y;
}
template <typename T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(emulated_gpu::dynamic_shared_memory);
}

}  // namespace trainctl::kernels::cuda
