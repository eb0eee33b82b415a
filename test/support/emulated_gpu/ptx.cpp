// The warp instructions of ptx.cuh, written from the PTX ISA: section "Warp-level matrix instructions".
#include <kernels/cuda/ptx.cuh>

#include <cstring>

namespace trainctl::emulated_gpu {
namespace {

/// Matrix m's row i lies at the address that lane 8 m + i gives. `element(lane, half)` is (row, column) of a lane's halves.
template <bool kTransposed>
void load_matrices(void* const* argument) {
  uint16_t matrix[8][8];
  for (int m = 0; m < 4; ++m) {
    for (int i = 0; i < 8; ++i) std::memcpy(matrix[i], static_cast<LdmatrixArgument*>(argument[8 * m + i])->row, sizeof matrix[i]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int group = lane / 4, pair = lane % 4 * 2;
      const uint32_t low = kTransposed ? matrix[pair][group] : matrix[group][pair];
      const uint32_t high = kTransposed ? matrix[pair + 1][group] : matrix[group][pair + 1];
      static_cast<LdmatrixArgument*>(argument[lane])->r[m] = high << 16 | low;
    }
  }
}

float lower(uint32_t word) { return std::bit_cast<float>(word << 16); }
float upper(uint32_t word) { return std::bit_cast<float>(word & 0xffff0000u); }

}  // namespace

void ldmatrix_lanes(void* const* argument) { load_matrices<false>(argument); }
void ldmatrix_trans_lanes(void* const* argument) { load_matrices<true>(argument); }

// "Matrix fragments for mma.m16n8k16 with floating point type", with groupID = lane >> 2, threadID_in_group = lane % 4:
//   a_i, i < 8:  row = groupID for 0 <= i < 2 or 4 <= i < 6, else groupID + 8;  col = threadID_in_group * 2 + (i & 1), + 8 for i >= 4
//   b_i, i < 4:  row = threadID_in_group * 2 + (i & 1), + 8 for i >= 2;         col = groupID
//   c_i, i < 4:  row = groupID for i < 2, else groupID + 8;                     col = threadID_in_group * 2 + (i & 1)
void mma_bf16_lanes(void* const* argument) {
  alignas(16) float a[16][16], b[16][8], sum[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& mine = *static_cast<const MmaArgument*>(argument[lane]);
    const int group = lane >> 2, pair = lane % 4 * 2;
    for (int i = 0; i < 8; i += 2) {
      float* const at = &a[i % 4 < 2 ? group : group + 8][pair + (i >= 4 ? 8 : 0)];
      at[0] = lower(mine.a[i / 2]);
      at[1] = upper(mine.a[i / 2]);
    }
    b[pair][group] = lower(mine.b0);
    b[pair + 1][group] = upper(mine.b0);
    b[pair + 8][group] = lower(mine.b1);
    b[pair + 9][group] = upper(mine.b1);
    for (int i = 0; i < 4; ++i) sum[i < 2 ? group : group + 8][pair + (i & 1)] = mine.d[i];
  }
  // A product of two bf16 is exact in f32; the hardware's order of the sum is its own, a test's tolerance covers it.
  for (int row = 0; row < 16; ++row) {
    float line[8];
    for (int col = 0; col < 8; ++col) line[col] = sum[row][col];
    for (int k = 0; k < 16; ++k)
      for (int col = 0; col < 8; ++col) line[col] += a[row][k] * b[k][col];
    for (int col = 0; col < 8; ++col) sum[row][col] = line[col];
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float* const d = static_cast<MmaArgument*>(argument[lane])->d;
    for (int i = 0; i < 4; ++i) d[i] = sum[i < 2 ? lane >> 2 : (lane >> 2) + 8][lane % 4 * 2 + (i & 1)];
  }
}

}  // namespace trainctl::emulated_gpu
