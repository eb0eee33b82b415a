// The warpgroup instructions of wgmma.cuh, written from the PTX ISA: section "Asynchronous warpgroup level
// matrix instructions".
#include <kernels/cuda/wgmma.cuh>

#include <cstring>

namespace trainctl::emulated_gpu {
namespace {

float bf16_value(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

/// The element at a byte of the unswizzled layout: bits 4 to 6 of an address are changed by its bits 7 to 9.
float element(int64_t byte) {
  uint16_t bits;
  std::memcpy(&bits, dynamic_shared_memory + (byte ^ (byte >> 7 & 7) << 4), sizeof bits);
  return bf16_value(bits);
}

/// Element (row, column) of a factor whose sums run along its rows: groups of 8 rows are 1024 bytes apart.
float across(const kernels::cuda::SharedPlace& p, int row, int column) {
  return element(p.byte + row / 8 * 1024 + row % 8 * 128 + column * 2);
}
/// Of one whose sums run down its columns: panels of 64 columns, and in each groups of 8 rows.
float down(const kernels::cuda::SharedPlace& p, int row, int column) {
  return element(p.byte + int64_t(column / 64) * p.panel_bytes + row / 8 * 1024 + row % 8 * 128 +
                 column % 64 * 2);
}

/// What a barrier in shared memory holds.
struct Phases {
  uint16_t threads, missing;
  uint32_t parity;  // of the phase that has not ended
};
static_assert(sizeof(Phases) == 8);

}  // namespace

void phase_begin(void* barrier, int threads) {
  *static_cast<Phases*>(barrier) = {uint16_t(threads), uint16_t(threads), 0};
}

void phase_arrive(void* barrier) {
  Phases& phases = *static_cast<Phases*>(barrier);
  if (--phases.missing > 0) return;
  phases.missing = phases.threads;
  phases.parity ^= 1;
  wake_those_who_wait_for(barrier);
}

void phase_wait(void* barrier, int parity, const Site& site) {
  while (static_cast<Phases*>(barrier)->parity == uint32_t(parity)) wait_for(barrier, site);
}

void wgmma_lanes(void* const* argument) {
  const auto& first = *static_cast<WgmmaArgument*>(argument[0]);
  float a[16][16];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& mine = *static_cast<WgmmaArgument*>(argument[lane]);
    if (!mine.a) continue;
    const int group = lane >> 2, pair = lane % 4 * 2;
    for (int i = 0; i < 8; ++i)
      a[i % 4 < 2 ? group : group + 8][pair + (i & 1) + (i >= 4 ? 8 : 0)] =
          bf16_value(i % 2 == 0 ? mine.a[i / 2] & 0xffff : mine.a[i / 2] >> 16);
  }
  if (!first.a) {
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k) a[row][k] = across(first.left, 16 * first.warp + row, k);
  }
  for (int n = 0; n < first.columns; ++n) {
    float b[16];
    for (int k = 0; k < 16; ++k) b[k] = first.down ? down(first.right, k, n) : across(first.right, n, k);
    for (int row = 0; row < 16; ++row) {
      const auto& lane = *static_cast<WgmmaArgument*>(argument[row % 8 * 4 + n % 8 / 2]);
      float& d = lane.d[n / 8][row / 8 * 2 + n % 2];
      float sum = first.add ? d : 0.0f;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k];
      d = sum;
    }
  }
}

int warp_of_group() { return int(threadIdx.x) / kLanes % 4; }

}  // namespace trainctl::emulated_gpu

namespace trainctl::kernels::cuda {

SharedPlace shared_place(const void* p, int panel_bytes) {
  return {static_cast<const unsigned char*>(p) - emulated_gpu::dynamic_shared_memory, panel_bytes};
}

}  // namespace trainctl::kernels::cuda
