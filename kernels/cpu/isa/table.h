// The vectorised kernels of one instruction set. Each source in this folder is compiled for x86-64-v2, v3 and
// v4. The backend chooses one table when it is made. Every function processes its whole matrices on the
// calling thread; callers divide the work.
#pragma once
#include "kernels/backend.h"

namespace trainctl::kernels::cpu {

/// One task of an attention call: the sequence, the head, and the rows of queries.
struct AttentionTask {
  int64_t batch = 0, head = 0;          ///< backward: head is the key/value head
  int64_t first_query = 0, queries = 0; ///< forward only; at most kQueryBlock
};
constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = 64;
constexpr int64_t kColumnSums = 256;

struct AttentionMatrices {
  Matrix q, k, v, out, dout, dq, dk, dv;  ///< the last four only in the backward pass
  float* lse = nullptr;
};

struct KernelTable {
  void (*copy)(const Matrix& src, const Matrix& dst);
  void (*add)(const Matrix& src, const Matrix& dst);  ///< any two activation dtypes; sum in f32, rounded once
  /// Computes out[begin, begin + n) of the balanced tree sum.
  void (*tree_sum)(const void* const* inputs, size_t input_count, void* out, DType dtype, int64_t begin, int64_t n);
  void (*add_rounded)(const Matrix& left, const Matrix& right, const Matrix& out);

  void (*norm_forward)(NormKind, const Matrix& x, const Matrix& delta, const float* weight, const float* bias, float eps,
                       const Matrix& sum, const Matrix& y, float* stats);
  void (*norm_apply)(NormKind, const Matrix& x, const float* stats, const float* weight, const float* bias,
                     const Matrix& y);
  /// Overwrites dweight and dbias with the sums over the rows of x.
  void (*norm_backward)(NormKind, const Matrix& dy, const Matrix& x, const float* weight, const float* stats,
                        const Matrix& dresidual, const Matrix& dx, float* dweight, float* dbias);
  /// out[c] (+)= sum over rows, in blocks of fixed height.   x.cols <= kColumnSums
  void (*column_sums)(const Matrix& x, float* out, bool accumulate);

  void (*gelu_forward)(const Matrix& x, const Matrix& y);
  void (*gelu_backward)(const Matrix& x, const Matrix& dy, const Matrix& dx);
  void (*swiglu_forward)(const Matrix& gate, const Matrix& up, const Matrix& y);
  void (*swiglu_backward)(const Matrix& gate, const Matrix& up, const Matrix& dy, const Matrix& dgate,
                          const Matrix& dup);

  /// Row r of x has position (first_position + r) mod seq_len.
  void (*rope)(const Matrix& x, int64_t head_dim, int64_t first_position, int64_t seq_len, const float* cos_sin,
               bool inverse);
  void (*attention_forward)(const AttentionShape&, const AttentionMatrices&, const AttentionTask&, float* scratch);
  void (*attention_backward)(const AttentionShape&, const AttentionMatrices&, const AttentionTask&, float* scratch);
  size_t (*attention_scratch_floats)(const AttentionShape&, bool backward);

  void (*cross_entropy_stats)(const Matrix& logits, const int32_t* targets, int64_t vocab_begin, float* stats);
  void (*cross_entropy_backward)(const Matrix& logits, const int32_t* targets, int64_t vocab_begin, const float* lse,
                                 float scale);

  void (*adamw)(const AdamWBox& box, const AdamWStep& step);
  double (*sum_squares)(const Matrix& x);
};

namespace v2 {
extern const KernelTable kTable;
}
namespace v3 {
extern const KernelTable kTable;
}
namespace v4 {
extern const KernelTable kTable;
}

}  // namespace trainctl::kernels::cpu
