// The masks of attention on the device. Kernels have an instance for the causal mask and one for every other
// (kMasked); a host value of DeviceMask is an argument of both.
#pragma once
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/device.cuh"
#include "kernels/op_arguments.h"

namespace trainctl::kernels::cuda {

/// Where the running maximum of a row begins that may see none of the first keys: a finite number, because
/// -infinity - -infinity is NaN.
constexpr float kLowest = -1e30f;

struct DeviceMask {
  const int32_t* first_key;    ///< [B*T], or null
  const float* sinks;          ///< [H], or null
  int offset, keys;            ///< of the first query among the keys of its sequence; of a sequence
  int window;                  ///< offset + seq_len: none
  float cap;                   ///< 0: none
  float score_cap;             ///< of scores without their factor scale: cap / scale
  float inverse_score_cap;

  explicit DeviceMask(const AttentionShape& s)
      : first_key(s.mask.first_key), sinks(s.mask.scalars[HeadScalar::sinks]),
        offset(int(s.mask.query_offset)), keys(int(s.keys_of_sequence())),
        window(int(s.has_window() ? s.mask.window : s.mask.query_offset + s.seq_len)), cap(s.mask.cap),
        score_cap(cap / s.scale), inverse_score_cap(cap > 0 ? s.scale / cap : 0.0f) {}

  /// `sequence`: its first query's row; it has seq_len of them.
  __device__ SequenceMask of(int64_t sequence, int seq_len) const {
    SequenceMask mask{first_key ? first_key + sequence : nullptr, window, offset + seq_len, offset};
    if (mask.first_key) mask.first_key -= offset;   // in one expression nvcc would spill registers
    return mask;
  }
};

/// What becomes of the scores of a head before the softmax: the kernels call it, and know no more of it.
struct HeadScores {
  const DeviceMask& mask;
  int head;

  /// Where the maximum of a row, times `unit`, and its sum begin: at the sink of the head.
  __device__ float first_max(float unit) const { return mask.sinks ? mask.sinks[head] * unit : kLowest; }
  __device__ float first_sum() const { return mask.sinks ? 1.0f : 0.0f; }
  /// The score becomes a capped one. Returns the slope of the cap.
  __device__ float shape(float& score) const {
    if (mask.cap <= 0) return 1.0f;
    const float tanh = tanhf(score / mask.cap);
    score = mask.cap * tanh;
    return 1.0f - tanh * tanh;
  }
};

/// Of a row of HeadScalarBackward.
__device__ inline float row_factor(HeadScalar scalar, float value, float lse) {
  switch (scalar) {
    case HeadScalar::sinks: return -expf(value - lse);
  }
  return 0.0f;
}

/// tanh by one exponential: its error is absolute, 2^-22, which is enough for scores in bf16.
__device__ inline float fast_tanh(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + fast_exp2(x * (2.0f * 1.4426950408889634f)));
}

/// HeadScores::shape of the scores of a tile, without their factor.
template <int kM, int kN>
__device__ inline void shape_scores(float (&scores)[kM][kN][4], const HeadScores& of) {
  const DeviceMask& mask = of.mask;
  if (mask.cap <= 0) return;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[m][n][e] = mask.score_cap * fast_tanh(scores[m][n][e] * mask.inverse_score_cap);
    }
  }
}

/// The same, and ds is multiplied by the slope.
template <int kM, int kN>
__device__ inline void shape_with_slopes(float (&scores)[kM][kN][4], float (&ds)[kM][kN][4], const HeadScores& of) {
  const DeviceMask& mask = of.mask;
  if (mask.cap <= 0) return;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float tanh = fast_tanh(scores[m][n][e] * mask.inverse_score_cap);
        scores[m][n][e] = mask.score_cap * tanh;
        ds[m][n][e] *= 1.0f - tanh * tanh;
      }
    }
  }
}

/// Scores of keys before the first one that their query sees become -infinity. Rows are queries from position
/// `query` on, columns keys from `key` on.
template <int kM, int kN>
__device__ inline void hide_early_keys(float (&scores)[kM][kN][4], const SequenceMask& mask, int query, int key) {
  const int lane = int(threadIdx.x) % kWarpSize, column = key + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = mask.first_visible(query + 16 * m + 8 * half + lane / 4) - column;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * n + e < first) scores[m][n][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

}  // namespace trainctl::kernels::cuda
