// Instructions of sm_80 and later that CUDA C++ does not provide: tensor-core products, matrix loads from
// shared memory, and asynchronous copies into shared memory. Only this file and wgmma.cuh have assembly. Source: PTX ISA
// 9.0, sections "Warp-level matrix instructions" and "Data movement: cp.async".
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace trainctl::kernels::cuda {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// Four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8 of matrix
/// l / 8 (16 bytes, aligned); it receives, in r[i], elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1) of
/// matrix i: the lower half is the first.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The same, each matrix transposed: r[i] holds elements (2 (l % 4), l / 4) and (2 (l % 4) + 1, l / 4) of
/// matrix i.
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// d += a b on the tensor cores: a [16, 16] row-major, b [16, 8] column-major, both bf16; d [16, 8] f32. With
/// g = lane / 4, t = lane % 4:
///   a[0] = (g, 2t..2t+1)  a[1] = (g+8, 2t..)  a[2] = (g, 2t+8..)  a[3] = (g+8, 2t+8..)
///   b[0] = rows 2t..2t+1 of column g          b[1] = rows 2t+8..2t+9 of column g
///   d[0], d[1] = (g, 2t), (g, 2t+1)           d[2], d[3] = (g+8, 2t), (g+8, 2t+1)
__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two floats as bf16 (round to nearest even) in one word, `low` in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

/// Copies 16 bytes asynchronously from global to shared memory (both 16-byte aligned); writes zeros if not
/// `valid`.
__device__ inline void cp_async16(void* shared, const void* global, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}
/// Closes a group of this thread's copies.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most kPending of this thread's newest groups are unfinished. Copies of other threads are
/// visible after a barrier.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

/// 2^x, approximate (relative error 2^-22), denormals flushed; 2^-infinity = 0.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// The dynamic shared memory of a launch, 1024-byte aligned.
template <typename T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char trainctl_dynamic_shared[];
  return reinterpret_cast<T*>(trainctl_dynamic_shared);
}

}  // namespace trainctl::kernels::cuda
