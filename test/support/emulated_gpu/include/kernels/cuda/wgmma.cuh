// Twin of kernels/cuda/wgmma.cuh. A product is done when it is asked for, so a missing wait is not seen. The
// layouts are written here a second time from the PTX ISA's figures ("Shared Memory Matrix Layout", "128B
// swizzle").
#pragma once
#include "kernels/cuda/ptx.cuh"

namespace trainctl::kernels::cuda {

/// A place in dynamic shared memory: its distance from the beginning, before the swizzle.
struct SharedPlace {
  int64_t byte = 0;
  int panel_bytes = 0;

  SharedPlace operator+(int bytes) const { return {byte + bytes, panel_bytes}; }
};

}  // namespace trainctl::kernels::cuda

namespace trainctl::emulated_gpu {

/// One warp's part of a product: rows 16 w to 16 w + 15 of its warpgroup's 64.
struct WgmmaArgument {
  float (*d)[4];                         ///< [N / 8][4] of the lane
  const uint32_t* a = nullptr;           ///< 4 of the lane, or null:
  kernels::cuda::SharedPlace left = {};  ///< then the left factor is here
  kernels::cuda::SharedPlace right;
  int columns = 64, warp = 0;
  bool down = false, add = true;
};
void wgmma_lanes(void* const* argument);
int warp_of_group();

/// A barrier in shared memory (8 bytes): a phase ends when `threads` arrivals have come, and the threads go on
/// that wait for its parity (0, 1, 0 ..).
void phase_begin(void* barrier, int threads);
void phase_arrive(void* barrier);
void phase_wait(void* barrier, int parity, const Site& site);

}  // namespace trainctl::emulated_gpu

namespace trainctl::kernels::cuda {

SharedPlace shared_place(const void* p, int panel_bytes);

template <int kN>
inline void wgmma_across(float (&d)[kN / 8][4], SharedPlace a, SharedPlace b, int add,
                         emulated_gpu::Site site = emulated_gpu::Site::current()) {
  emulated_gpu::WgmmaArgument argument{
      .d = d, .left = a, .right = b, .columns = kN, .warp = emulated_gpu::warp_of_group(), .add = add != 0};
  emulated_gpu::aligned_warp_instruction(emulated_gpu::wgmma_lanes, &argument, site);
}
template <int kN>
inline void wgmma_across(float (&d)[kN / 8][4], const uint32_t (&a)[4], SharedPlace b, int add,
                         emulated_gpu::Site site = emulated_gpu::Site::current()) {
  emulated_gpu::WgmmaArgument argument{.d = d, .a = a, .right = b, .columns = kN, .add = add != 0};
  emulated_gpu::aligned_warp_instruction(emulated_gpu::wgmma_lanes, &argument, site);
}
template <int kN>
inline void wgmma_down(float (&d)[kN / 8][4], const uint32_t (&a)[4], SharedPlace b,
                       emulated_gpu::Site site = emulated_gpu::Site::current()) {
  emulated_gpu::WgmmaArgument argument{.d = d, .a = a, .right = b, .columns = kN, .down = true};
  emulated_gpu::aligned_warp_instruction(emulated_gpu::wgmma_lanes, &argument, site);
}
inline void wgmma_begin() {}
inline void wgmma_commit() {}
template <int kPending>
inline void wgmma_wait() {}
template <int kCount>
inline void changed_by_wgmma(float (&)[kCount][4]) {}

struct SharedBarrier {
  uint64_t bits;
};
inline void barrier_init(SharedBarrier* barrier, int threads) { emulated_gpu::phase_begin(barrier, threads); }
inline void cp_async_arrive(SharedBarrier* barrier) {
  emulated_gpu::late_copy_commit();
  emulated_gpu::late_copy_wait(0);
  emulated_gpu::phase_arrive(barrier);
}
inline void barrier_wait(SharedBarrier* barrier, int parity,
                         emulated_gpu::Site site = emulated_gpu::Site::current()) {
  emulated_gpu::phase_wait(barrier, parity, site);
}

}  // namespace trainctl::kernels::cuda
