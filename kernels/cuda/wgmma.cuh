// Instructions that only Hopper (sm_90a) has, or that its kernels need: matrix products by a warpgroup
// (wgmma), and barriers in shared memory at which asynchronous copies arrive. Source: PTX ISA 9.0, sections
// "Asynchronous warpgroup level matrix instructions" and "Parallel synchronization and communication
// instructions: mbarrier".
//
// A warpgroup is four warps, the first a multiple of four; all its threads execute each instruction. Warp w
// of it holds rows 16 w to 16 w + 15 of the product and of a left factor in registers, laid out as in
// mma_bf16 (ptx.cuh): d[n] are columns 8 n to 8 n + 7.
//
// A factor in shared memory is in panels of 64 columns: [rows, 64] bf16, 128 bytes a row, the 16-byte piece c
// of row r at piece c ^ (r mod 8). Panels begin on 1024 bytes.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace trainctl::kernels::cuda {

/// Where wgmma finds a factor. A step of `place + bytes`: 16 rows are 2048 bytes, 16 columns of a panel 32.
struct SharedPlace {
  /// The "matrix descriptor": the address / 16, from bit 16 on the distance of panels / 16, from bit 32 on that of
  /// groups of 8 rows / 16, and in bits 62, 63 the swizzle of 128 bytes.
  uint64_t bits;

  __device__ SharedPlace operator+(int bytes) const { return {bits + uint64_t(bytes >> 4)}; }
};
/// panel_bytes: between one panel and the next; matters only to wgmma_down.
__device__ inline SharedPlace shared_place(const void* p, int panel_bytes) {
  return {uint64_t((shared_address(p) & 0x3ffff) >> 4) | uint64_t(panel_bytes >> 4) << 16 |
          uint64_t(1024 >> 4) << 32 | uint64_t{1} << 62};
}

#define TRAINCTL_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define TRAINCTL_D32                                                                              \
  TRAINCTL_D4(0), TRAINCTL_D4(1), TRAINCTL_D4(2), TRAINCTL_D4(3), TRAINCTL_D4(4), TRAINCTL_D4(5), \
      TRAINCTL_D4(6), TRAINCTL_D4(7)
#define TRAINCTL_D64                                                                               \
  TRAINCTL_D32, TRAINCTL_D4(8), TRAINCTL_D4(9), TRAINCTL_D4(10), TRAINCTL_D4(11), TRAINCTL_D4(12), \
      TRAINCTL_D4(13), TRAINCTL_D4(14), TRAINCTL_D4(15)
#define TRAINCTL_R32                                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, "                                                                            \
  "%27, %28, %29, %30, %31"
#define TRAINCTL_R64                                                                                  \
  TRAINCTL_R32                                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
  "%51, %52, %53, "                                                                                   \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/// d [64, N] = or += a b^T over 16 columns: a [64, 16], b [N, 16], both in shared memory.
template <int kN>
__device__ inline void wgmma_across(float (&d)[kN / 8][4], SharedPlace a, SharedPlace b, int add) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{" TRAINCTL_R32 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
        : TRAINCTL_D32
        : "l"(a.bits), "l"(b.bits), "r"(add));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{" TRAINCTL_R64 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : TRAINCTL_D64
        : "l"(a.bits), "l"(b.bits), "r"(add));
  }
}
/// The same with a in registers.
template <int kN>
__device__ inline void wgmma_across(float (&d)[kN / 8][4], const uint32_t (&a)[4], SharedPlace b, int add) {
  static_assert(kN == 64);
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" TRAINCTL_R32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
      : TRAINCTL_D32
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(add));
}
/// d [64, N] += a b over 16 rows: a [64, 16] in registers, b [16, N] in shared memory, N / 64 panels.
template <int kN>
__device__ inline void wgmma_down(float (&d)[kN / 8][4], const uint32_t (&a)[4], SharedPlace b) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TRAINCTL_R32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
                 : TRAINCTL_D32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TRAINCTL_R64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
                 : TRAINCTL_D64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits));
  }
}

/// Before products that read registers which other instructions wrote, or shared memory that ordinary stores
/// and copies wrote.
__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
/// Closes a group of products.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
/// Waits until at most kPending of the newest groups are unfinished. Registers of unfinished ones must not be
/// touched.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
/// Tells the compiler that d changes here: after a wait, or it would read d before it.
template <int kCount>
__device__ inline void changed_by_wgmma(float (&d)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : TRAINCTL_D4(i)::"memory");
}

#undef TRAINCTL_D4
#undef TRAINCTL_D32
#undef TRAINCTL_D64
#undef TRAINCTL_R32
#undef TRAINCTL_R64

/// A barrier in shared memory, 8 bytes. Its phases count from 0; each ends when `threads` arrivals have come.
struct SharedBarrier {
  uint64_t bits;
};
__device__ inline void barrier_init(SharedBarrier* barrier, int threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(threads)
               : "memory");
}
/// This thread arrives once all copies that it asked for so far (cp_async16) are done.
__device__ inline void cp_async_arrive(SharedBarrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(shared_address(barrier))
               : "memory");
}
/// Waits until a phase of this parity has ended; then shared memory is as the others left it, for wgmma, too.
__device__ inline void barrier_wait(SharedBarrier* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
      "WAIT;\nDONE:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace trainctl::kernels::cuda
